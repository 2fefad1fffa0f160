"""Damages small files of every format and reads them; a program of its own, since a damaged file may kill a process.

    python format_damage.py SEED DAMAGES_PER_FORMAT [FORMAT ...]

Before each damage a line says what it is, so that the last one is known when the process dies; at the end comes `DONE`,
after each damage that broke a law a line that starts with `BROKE`.
"""

from __future__ import annotations

import resource
import shutil
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import msgspec
import numpy as np
from format_cases import FORMATS, FormatCase, content, files_of, same

from headrace.errors import HeadraceError
from headrace.index.storage import describe_columns, open_stored, write_index

_MAX_MORE_BYTES = 1 << 30  # of address space: whoever makes room for what a damaged file claims runs into it
_NUMBERS = (0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)


def damaged(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """Return what was done to the bytes of a file, and what came out."""
    kind = rng.choice(["cut", "flip", "number", "byte"], p=[0.3, 0.3, 0.3, 0.1])
    place = int(rng.integers(0, max(len(data), 1)))
    if kind == "cut" or not data:
        return f"cut at {place}", data[:place]
    changed = bytearray(data)
    if kind == "flip":
        bit = int(rng.integers(0, 8))
        changed[place] ^= 1 << bit
        return f"bit {bit} of byte {place} flipped", bytes(changed)
    if kind == "byte":
        changed[place] = int(rng.integers(0, 256))
        return f"byte {place} is {changed[place]}", bytes(changed)
    width = int(rng.choice([2, 4, 8]))
    number = int(rng.choice(np.array(_NUMBERS, np.uint64))) % 2 ** (8 * width)
    order = str(rng.choice(["little", "big"]))
    changed[place : place + width] = number.to_bytes(width, order)
    return f"{number} in {width} {order}-endian bytes at byte {place}", bytes(changed[: len(data)])


def damage_index(path: Path, rng: np.random.Generator) -> str:
    """Change one number in a column of an index, with the right checksums; return what was done."""
    stored = open_stored(path)
    columns = {name: np.array(column) for name, column in stored.columns.items()}
    name = str(rng.choice([name for name, column in columns.items() if column.size]))
    column = columns[name]
    place, number = int(rng.integers(0, column.size)), int(rng.choice(np.array(_NUMBERS, np.uint64)))
    column.view(f"u{column.itemsize}")[place] = number % 2 ** (8 * column.itemsize)
    columns[name] = column
    write_index(path, msgspec.structs.replace(stored.header, columns=describe_columns(columns)), columns)
    return f"{name}[{place}] is {column[place]}"


def verdict(case: FormatCase, folder: Path, whole: list, *, index: Path | None = None, is_cut: bool = False) -> str:
    """Read a damaged corpus; return what is wrong with what happened, or an empty text."""
    try:
        source = case.open(folder, index)
        try:
            found = content(source)
        finally:
            source.close()
    except HeadraceError:
        return ""
    except Exception:  # noqa: BLE001 - whatever it is, it is reported
        return f"raw error: {traceback.format_exc()}"
    if same(found, whole) or case.counts_lines:
        return ""
    if is_cut:
        return "a file that was cut is read as something else"
    if len(found) != len(whole):
        return f"{len(found)} sequences in place of {len(whole)}"
    return ""


def main() -> None:
    """Damage and read."""
    seed, num_damages, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    for name in names or FORMATS:
        case = FORMATS[name]
        if not case.is_available:
            continue
        rng = np.random.default_rng([int(seed), list(FORMATS).index(name)])
        folder = Path(tempfile.mkdtemp(prefix="headrace-damage-"))
        try:
            case.write(folder)
            source = case.open(folder)
            whole = content(source)
            source.close()
            paths = files_of(folder)
            _limit_memory()
            for _ in range(int(num_damages)):
                path = paths[int(rng.integers(0, len(paths)))]
                data = path.read_bytes()
                what, changed = damaged(data, rng)
                print(f"{name}, {path.name}: {what}", flush=True)  # noqa: T201
                path.write_bytes(changed)
                wrong = verdict(case, folder, whole, is_cut=what.startswith("cut"))
                path.write_bytes(data)
                if wrong:
                    print(f"BROKE {name}, {path.name}: {what}: {wrong}", flush=True)  # noqa: T201
            index = folder / "the.hrindex"
            source = case.open(folder)
            source.index.save(index)
            source.close()
            saved = index.read_bytes()
            for _ in range(int(num_damages)):
                what = damage_index(index, rng)
                print(f"{name}, index: {what}", flush=True)  # noqa: T201
                wrong = verdict(case, folder, whole, index=index)
                index.write_bytes(saved)
                if wrong:
                    print(f"BROKE {name}, index: {what}: {wrong}", flush=True)  # noqa: T201
        finally:
            shutil.rmtree(folder)
    print("DONE", flush=True)  # noqa: T201


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _MAX_MORE_BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()

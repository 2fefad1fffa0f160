"""`check_format`: whether what a format's writer takes is what its source gives back."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError
from headrace.sources import Source, open_source
from headrace.sources.formats import Format
from headrace.sources.registry import open_writer
from headrace.specs import DataSpec

from .source_checks import check_source

Seqs = list[tuple[str, dict[str, NDArray[Any]]]]
_DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_FRACTIONS = ("float16", "float32", "float64", "complex64", "complex128")


def check_format(entry: Format, *, writer_options: Mapping[str, Any] | None = None) -> int:
    """Check that a format gives back what was written, or refuses it before anything is there.

    Call it from a test. It writes small corpora of many layouts (all dtypes, with and without time, several axes, class
    indices, several keys, no sequences), with and without `specs`, and reads them back. A layout that the format cannot
    hold must be refused with a `HeadraceError`, and nothing may be left of the target. Of what it holds, each sequence
    must come back under its tag, to the bit, by `open_source` of the path alone, and the source must pass
    `check_source`. (A key without a time axis may come back as one frame.) Besides: an existing target is refused
    unless `overwrite` is given, `abort` leaves nothing, and a closed writer takes no more.

    Args:
        entry: The format; it has a writer.
        writer_options: Options of the writer that it cannot do without.

    Returns:
        The number of corpora that the format holds.

    Raises:
        AssertionError: The format breaks the contract; the text says how.
    """
    num_held = 0
    for specs, seqs in _corpora():
        # What a writer learns itself may go wrong where nothing but the numbers says what they are.
        may_learn = seqs and all(not spec.shape for spec in specs.values())
        for tells_specs in (True, False) if may_learn else (True,):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, f"corpus{entry.suffix}")
                options = {**(writer_options or {}), **({"specs": specs} if tells_specs else {})}
                if _is_written(entry, path, seqs, options):
                    num_held += 1
                    _check_read(entry, path, specs, seqs)
                    if seqs:
                        _check_target(entry, path, seqs, options)
                else:
                    _require(not os.listdir(folder), entry, f"{specs} was refused, and left {os.listdir(folder)}")
    return num_held


def _corpora() -> Iterator[tuple[dict[str, DataSpec], Seqs]]:
    """Yield layouts, and sequences of them."""
    rng = np.random.default_rng(0)
    layouts: list[dict[str, DataSpec]] = []
    for dtype in (*_DTYPES, *_FRACTIONS):
        layouts += [{"data": DataSpec(dtype, shape, dim=shape[-1] if shape else 1)} for shape in ((), (2,))]
        layouts.append({"data": DataSpec(dtype, (2,), dim=2, has_time=False)})
    layouts += [{"classes": DataSpec(dtype, sparse=True, dim=None)} for dtype in _DTYPES[1:]]
    layouts += [{"classes": DataSpec("int32", sparse=True, dim=5)}, {"data": DataSpec("float32", (3, 1), dim=1)}]
    layouts.append({"data": DataSpec("float32", (2, None), dim=None)})
    layouts.append({"data": DataSpec("float32", (1,), dim=1), "orth": DataSpec("uint8", sparse=True, dim=256)})
    layouts.append({"data": DataSpec("float32", (4,), dim=4), "classes": DataSpec("int32", sparse=True, dim=7)})
    for specs in layouts:
        seqs = [
            (f"seq-{length}", {key: _array_of(spec, length, rng) for key, spec in specs.items()})
            for length in (3, 0, 1, 6)
        ]
        yield specs, seqs
    yield layouts[-1], []


def _array_of(spec: DataSpec, length: int, rng: np.random.Generator) -> NDArray[Any]:
    shape = [*([length] if spec.has_time else []), *(int(rng.integers(1, 4)) if n is None else n for n in spec.shape)]
    dtype = np.dtype(spec.dtype)
    if spec.sparse:
        return rng.integers(0, min(spec.dim or 100, 100), shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape).astype(bool))
    return np.asarray(rng.standard_normal(shape) + (1j if dtype.kind == "c" else 0)).astype(dtype)


def _require(condition: bool, entry: Format, what: str) -> None:
    if not condition:
        raise AssertionError(f"format {entry.name!r}: {what}")


def _is_written(entry: Format, path: str, seqs: Seqs, options: dict[str, Any]) -> bool:
    """Write a corpus; return whether the format can hold it."""
    try:
        with open_writer(entry, path, **options) as writer:
            for tag, arrays in seqs:
                writer.append(tag, arrays)
    except HeadraceError:
        return False
    writer.close()
    writer.abort()  # neither does anything any more
    _require(writer.num_seqs == len(seqs), entry, f"num_seqs is {writer.num_seqs} after {len(seqs)} sequences")
    if seqs:
        try:
            writer.append(*seqs[0])
        except ConfigError:
            return True
        raise AssertionError(f"format {entry.name!r}: a closed writer takes a sequence")
    return True


def _opened(entry: Format, path: str, specs: Mapping[str, DataSpec]) -> Source:
    options = {} if entry.key_option is None else {entry.key_option: next(iter(specs))}
    return open_source(path, index=None, **options)


def _check_read(entry: Format, path: str, specs: dict[str, DataSpec], seqs: Seqs) -> None:
    source = _opened(entry, path, specs)
    try:
        _require(len(source) == len(seqs), entry, f"{len(seqs)} sequences were written, {len(source)} are read")
        for corpus_idx, (tag, arrays) in enumerate(seqs):
            _require(source.tag(corpus_idx) == tag, entry, f"the tag {tag!r} came back as {source.tag(corpus_idx)!r}")
            found = source.read_seq(corpus_idx)
            _require(found.keys() == arrays.keys(), entry, f"keys {list(arrays)} came back as {list(found)}")
            for key, array in arrays.items():
                shapes = [array.shape, *([(1, *array.shape)] if not specs[key].has_time else [])]
                same = found[key].dtype == array.dtype and found[key].shape in shapes
                same = same and found[key].tobytes() == array.tobytes()
                _require(same, entry, f"{key!r} of {specs} came back as another array: {found[key]!r}, not {array!r}")
        if seqs:
            check_source(source)
    finally:
        source.close()


def _check_target(entry: Format, path: str, seqs: Seqs, options: dict[str, Any]) -> None:
    """Check that what is there is not lost, and that what is given up leaves nothing."""
    folder = os.path.dirname(path)
    before = sorted(os.listdir(folder))
    try:
        open_writer(entry, path, **options).abort()
    except ConfigError:
        pass
    else:
        raise AssertionError(f"format {entry.name!r}: a target that exists is replaced without overwrite=True")
    writer = open_writer(entry, path, overwrite=True, **options)
    writer.append(*seqs[0])
    writer.abort()
    after = sorted(os.listdir(folder))
    _require(after == before, entry, f"before an abort there was {before}, after it there is {after}")
    other = os.path.join(folder, f"other{entry.suffix}")
    writer = open_writer(entry, other, **options)
    writer.append(*seqs[0])
    writer.abort()
    after = sorted(os.listdir(folder))
    _require(after == before, entry, f"an aborted writer left {sorted(set(after) - set(before))}")

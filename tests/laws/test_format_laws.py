"""Laws of every format that sources read. `format_cases.py` has the table: a new format is one entry there."""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import resource
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from format_cases import FORMATS, FormatCase, content, files_of, same
from hypothesis import given
from hypothesis import strategies as st

import headrace.sources
from examples_of_laws import examples
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.sources import Writer, formats, open_source
from headrace.sources.base import Source
from headrace.sources.formats import find_format

_DAMAGES = 10  # of each format and example

FEW = examples(6)


NOT_HERE = {
    "HuggingFaceSource": "its files are read by the library of Hugging Face; see test_hugging_face_source.py",
    "AudioTableSource": "its table is in memory, and its recordings are read as those of a manifest",
    "MapSource": "an object of the user's",
    "MemorySource": "no files",
}


def _exported(base: type) -> set[str]:
    found = {name: getattr(headrace.sources, name) for name in headrace.sources.__all__}
    classes = {name: cls for name, cls in found.items() if isinstance(cls, type) and issubclass(cls, base)}
    to_be_derived_from = {"IndexedSource", "Records"}
    return {name for name, cls in classes.items() if not inspect.isabstract(cls)} - to_be_derived_from


def test_every_source_that_reads_files_is_in_these_laws_or_elsewhere() -> None:
    here = {case.open.source for case in FORMATS.values()}
    assert here | NOT_HERE.keys() == _exported(Source)
    assert not here & NOT_HERE.keys()


def test_every_source_and_writer_is_of_a_format_by_which_laws_and_commands_find_it() -> None:
    entries = formats.FORMATS.values()
    assert {entry.source for entry in entries} == _exported(Source) - {
        "MapSource",
        "MemorySource",
        "AudioTableSource",
    }
    assert {entry.writer for entry in entries if entry.writer} == _exported(Writer)


@examples(2)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_damaged_file_is_read_as_it_was_or_refused(seed: int) -> None:
    """In a process of its own, whose memory is limited: it must not die, nor make room for what a file claims."""
    script = Path(__file__).with_name("format_damage.py")
    done = subprocess.run(
        [sys.executable, script, str(seed), str(_DAMAGES)], capture_output=True, text=True, timeout=140, check=False
    )
    lines = done.stdout.splitlines()
    broken = [line for line in lines if line.startswith("BROKE")]
    assert not broken, done.stdout
    assert lines[-1:] == ["DONE"], f"the process ended with {done.returncode} after {lines[-1:]}: {done.stderr}"


@examples(2)
@given(seed=st.integers(0, 2**32 - 1))
def test_a_file_that_is_rewritten_after_it_was_indexed_gives_the_old_data_or_an_error(
    case: FormatCase, tmp_path_factory, seed: int
) -> None:
    """Each file is rewritten in place: with other bytes, some or all, cut, made longer, or with its own bytes."""
    folder = tmp_path_factory.mktemp("rewritten")
    case.write(folder)
    source = case.open(folder)
    whole = content(source)
    rng = np.random.default_rng(seed)
    for path in files_of(folder):
        data = path.read_bytes()
        random = bytes(rng.integers(0, 256, len(data), np.uint8))
        others = [random, data[: len(data) // 2], data + data, data]
        if case.stamped:
            place = int(rng.integers(0, len(data))) if data else 0
            others += [data[:place] + random[place : place + 8] + data[place + 8 :], data[:place] + random[place:]]
        for other in others:
            source.close()
            path.write_bytes(other)
            _must_be_old(source, whole)
    source.close()


def test_a_file_that_is_replaced_after_it_was_opened_gives_the_old_data_or_an_error(
    case: FormatCase, tmp_path: Path
) -> None:
    case.write(tmp_path)
    source = case.open(tmp_path)
    whole = content(source)
    for path in files_of(tmp_path):
        other = path.with_name("other")
        other.write_bytes(bytes(path.stat().st_size))
        other.replace(path)
    _must_be_old(source, whole)
    source.close()


def _must_be_old(source, whole) -> None:
    for i, (_, arrays) in enumerate(whole):
        for key, array in arrays.items():
            with contextlib.suppress(SourceError):
                np.testing.assert_array_equal(source.read(i, key), array)
            with contextlib.suppress(SourceError):
                np.testing.assert_array_equal(
                    source.read_slice(i, key, 0, 0 if source.specs[key].has_time else 1),
                    array[:0] if source.specs[key].has_time else array,
                )
        with contextlib.suppress(SourceError):
            seq = source.read_seq(i)
            assert all(np.array_equal(seq[key], array) for key, array in arrays.items())
    for key, spec in source.specs.items():
        if source.has_fast_rows and spec.has_time:
            out = np.empty((sum(len(arrays[key]) for _, arrays in whole), *spec.shape), spec.dtype)
            with contextlib.suppress(SourceError):
                source.read_rows(np.arange(len(whole)), key, out)
                np.testing.assert_array_equal(out, np.concatenate([arrays[key] for _, arrays in whole]))


@FEW
@given(data=st.data())
def test_a_slice_is_what_the_whole_has_there_or_refused(case: FormatCase, tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("slices")
    case.write(folder)
    source = case.open(folder)
    for i, (_, arrays) in enumerate(content(source)):
        for key, array in arrays.items():
            num_frames = len(array) if source.specs[key].has_time else 1
            numbers = st.integers(-3, num_frames + 3) | st.sampled_from([2**31, 2**62, -(2**62)])
            start, end = data.draw(numbers), data.draw(numbers)
            if 0 <= start <= end <= num_frames:
                part = source.read_slice(i, key, start, end)
                expected = array[start:end] if source.specs[key].has_time else array
                assert (part.dtype, part.shape) == (expected.dtype, expected.shape)
                np.testing.assert_array_equal(part, expected)
            else:
                with pytest.raises(IndexError):
                    source.read_slice(i, key, start, end)
    source.close()


def test_sequences_that_are_not_there_are_refused(case: FormatCase, tmp_path: Path) -> None:
    case.write(tmp_path)
    source = case.open(tmp_path)
    key = next(iter(source.specs))
    for wrong in (-1, len(source), 2**40):
        with pytest.raises(IndexError):
            source.read(wrong, key)
        with pytest.raises(IndexError):
            source.read_slice(wrong, key, 0, 0)
    with pytest.raises(SourceError, match="no data key"):
        source.read(0, "no such key")
    source.close()


NUMBERS = [f"{order}{kind}{size}" for order in "<>" for kind in "iu" for size in (1, 2, 4, 8)]
REALS = [f"{order}{kind}" for order in "<>" for kind in ("f2", "f4", "f8")]


@pytest.mark.parametrize("lengths", [*NUMBERS, *REALS])
@pytest.mark.parametrize("frames", ["<i2", ">i2", ">f4", ">u8", ">c8", "|b1"])
def test_hdf5_of_any_byte_order_and_width_is_read(tmp_path: Path, lengths: str, frames: str) -> None:
    h5py = pytest.importorskip("h5py")
    rows = np.arange(10).reshape(5, 2).astype(frames)
    for chunks in (None, (2, 2)):
        path = tmp_path / f"{chunks}.hdf"
        with h5py.File(path, "w") as file:
            file.create_dataset("inputs", data=rows, chunks=chunks)
            file["seqLengths"] = np.array([[3], [2]], lengths)
            file["seqTags"] = np.array([b"a", b"b"])
            file.attrs["inputPattSize"] = np.array(2, ">i4")
        source = _open("HDFSource", path)
        assert [source.read(i, "data").tolist() for i in range(2)] == [rows[:3].tolist(), rows[3:].tolist()]
        assert source.read(0, "data").dtype.isnative
        source.close()


def test_hdf5_lengths_that_are_none_are_refused_in_any_byte_order(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for dtype in (*NUMBERS, *REALS):
        for wrong in (-1, 2.5, np.inf, np.nan, 2**62 + 2**60):
            with np.errstate(all="ignore"):
                stored = np.array(wrong).astype(dtype)
            if stored == 2:
                continue
            with h5py.File(tmp_path / "x.hdf", "w") as file:
                file["inputs"] = np.zeros((5, 2), "f4")
                file["seqLengths"] = np.array([[3], [stored]], dtype)
            with pytest.raises(SourceError):
                _open("HDFSource", tmp_path / "x.hdf")


@pytest.mark.parametrize("dtype", NUMBERS)
def test_tokens_and_bounds_of_any_byte_order_and_width_are_read(tmp_path: Path, dtype: str) -> None:
    tokens = np.arange(10).astype(dtype)
    np.save(tmp_path / "x.npy", tokens)
    np.save(tmp_path / "starts.npy", np.array([0, 4]).astype(dtype))
    bounded = _open("TokenSource", tmp_path / "x.npy", by="document", documents=tmp_path / "starts.npy")
    ended = _open("TokenSource", tmp_path / "x.npy", by="document", eos=3)
    for source in (bounded, ended):
        assert source.read(1, "data").dtype == tokens.dtype.newbyteorder("=")
        assert [source.read(i, "data").tolist() for i in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]
        out = np.empty(10, source.specs["data"].dtype)
        source.read_rows(np.array([1, 0]), "data", out)
        assert out.tolist() == [4, 5, 6, 7, 8, 9, 0, 1, 2, 3]
        source.close()


def _open(name: str, path: Path, **options):
    import headrace

    return getattr(headrace, name)(path, index=None, **options)


_WHOLE = st.integers(-(2**63), 2**64 - 1) | st.integers(-(2**25), 2**25) | st.sampled_from([2**24 + 1, 2**53 + 1])
_FRACTIONS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.5, 1e300, 1700000099.25])
_VALUES = st.one_of(
    st.booleans(),
    _WHOLE,
    _FRACTIONS,
    st.lists(_WHOLE, max_size=4),
    st.lists(_WHOLE | _FRACTIONS, max_size=4),
    st.lists(st.lists(_WHOLE | _FRACTIONS, min_size=2, max_size=2), max_size=3),
)


@examples(150)
@given(values=st.lists(_VALUES, min_size=1, max_size=3), in_tar=st.booleans())
def test_a_number_of_json_is_read_as_it_was_written_or_refused(tmp_path_factory, values, in_tar: bool) -> None:
    """Whole numbers exactly; fractions as near as the dtype is, and no whole digit lost. JSON lines and tar alike."""
    import io

    folder = tmp_path_factory.mktemp("json")
    lines = [json.dumps({"x": value}).encode() for value in values]
    try:
        if in_tar:
            with tarfile.open(folder / "x.tar", "w") as archive:
                for i, line in enumerate(lines):
                    info = tarfile.TarInfo(f"{i}.json")
                    info.size = len(line)
                    archive.addfile(info, io.BytesIO(line))
            source = _open("TarSource", folder / "x.tar", fields={"x": "json:x"})
        else:
            (folder / "x.jsonl").write_bytes(b"\n".join(lines))
            source = _open("JsonlSource", folder / "x.jsonl", fields={"x": "x"})
    except HeadraceError:
        return
    for i, value in enumerate(values):
        array = source.read(i, "x")
        for read, written in zip(array.reshape(-1).tolist(), np.array(value, object).reshape(-1), strict=True):
            if isinstance(written, int):
                assert read == written
            else:
                assert read == pytest.approx(written, rel=1e-6)
                assert abs(read - written) < 1 or abs(written) >= 2**53
    source.close()


def test_a_pipe_in_the_place_of_any_file_is_refused_and_not_waited_for(
    case: FormatCase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = tmp_path_factory.mktemp("whole")
    case.write(whole)
    for file in files_of(whole):
        folder = tmp_path_factory.mktemp("pipe")
        case.write(folder)
        place = folder / file.relative_to(whole)
        place.unlink()
        os.mkfifo(place)
        with pytest.raises(SourceError):
            content(case.open(folder))
        with pytest.raises(HeadraceError):
            open_source(place)


def test_a_name_with_a_nul_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file can have the name"):
        open_source(tmp_path / "a\0x.hdf")


@contextlib.contextmanager
def _free_descriptors(num: int) -> Iterator[None]:
    """Leave room for so many open files and no more, in a `with` block."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    held = [os.open(os.devnull, os.O_RDONLY)]
    while held[-1] < highest:  # no number below is free
        held.append(os.open(os.devnull, os.O_RDONLY))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(held) + 1 + num, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in held:
            os.close(descriptor)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_without_room_for_another_open_file_there_is_an_error_of_ours(
    case: FormatCase, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("poor")
    case.write(folder)
    whole = content(case.open(folder))  # with this, everything is imported as well
    for num in range(8):
        gc.collect()
        with _free_descriptors(num), contextlib.suppress(HeadraceError):
            assert same(content(case.open(folder)), whole)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc")
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "x.wav").touch()
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = os.open(tmp_path, os.O_RDONLY)  # the lowest number that was free
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (held, old[1]))
        with pytest.raises(SourceError, match="Too many open files"):
            find_format(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
        os.close(held)


_LEFT_OPEN = """
import sys, tempfile, warnings
from pathlib import Path
warnings.simplefilter("ignore")
import torch  # with it, modules are taken apart before the sources that are still open
from format_cases import FORMATS, content
kept = []
for case in FORMATS.values():
    if case.is_available:
        folder = Path(tempfile.mkdtemp(dir=sys.argv[1]))
        case.write(folder)
        kept.append(case.open(folder))
        content(kept[-1])
"""


@pytest.mark.extra
def test_sources_that_are_open_at_the_end_of_the_interpreter_say_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch")
    command = [sys.executable, "-W", "ignore", "-c", _LEFT_OPEN, str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    assert (done.returncode, done.stderr) == (0, "")

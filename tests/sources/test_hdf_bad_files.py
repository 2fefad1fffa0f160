"""`HDFSource`: what a bad file, or a bad set of files, is told."""

import contextlib
import os
import resource
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.errors import SourceError
from headrace.sources import HDFSource, HDFWriter

LENGTHS = [3, 0, 5, 1]


def table(*columns, dtype=np.int32):
    return np.array(columns, dtype).T


BAD_PARTS = {
    "no lengths": ({"seqLengths": None}, "has no seqLengths"),
    "lengths are a group": ({"seqLengths": h5py.Group}, "is a Group"),
    "lengths are text": ({"seqLengths": np.array([b"3", b"0", b"5", b"1"])}, "not a table of whole numbers"),
    "lengths have three axes": ({"seqLengths": np.zeros((4, 2, 1), np.int32)}, "not a table of whole numbers"),
    "lengths are null": ({"seqLengths": h5py.Empty("i4")}, "not a table of whole numbers"),
    "too few columns": ({"seqLengths": table(LENGTHS)}, "1 columns for 2 keys"),
    "too many columns": ({"seqLengths": table(LENGTHS, LENGTHS, LENGTHS)}, "3 columns for 2 keys"),
    "negative length": ({"seqLengths": table(LENGTHS, [4, -1, 5, 1])}, "length -1 "),
    "NaN length": ({"seqLengths": table(LENGTHS, [3, np.nan, 5, 1], dtype=float)}, "length nan "),
    "infinite length": ({"seqLengths": table(LENGTHS, [3, np.inf, 5, 1], dtype=float)}, "length inf "),
    "half a frame": ({"seqLengths": table(LENGTHS, [3.5, 0, 5, 0.5], dtype=float)}, "length 3.5 "),
    "lengths that wrap around": (
        {"seqLengths": table(LENGTHS, [2**64 - 1, 4, 5, 1], dtype=np.uint64)},
        "length 18446744073709551615 ",
    ),
    "lengths whose sum wraps around to what is stored": (
        {"seqLengths": table(LENGTHS, [2**62, 2**62, 2**62, 2**62], dtype=np.int64)},
        "the lengths of 'classes' add up to",
    ),
    "lengths whose sum wraps around to a negative number": (
        {"seqLengths": table([2**62, 2**62, 0, 9], LENGTHS, dtype=np.int64)},
        "the lengths of 'data' add up to",
    ),
    "a length that is more than all frames": (
        {"seqLengths": table(LENGTHS, [3, 0, 10, 1])},
        "the lengths of 'classes' add up to 14 frames, but 9 are stored",
    ),
    "too few frames": ({"inputs": np.ones((8, 4), np.float32)}, "add up to 9 frames, but 8 are stored"),
    "too many frames": ({"targets/data/classes": np.arange(10)}, "add up to 9 frames, but 10 are stored"),
    "too few tags": ({"seqTags": np.array([b"a", b"b"])}, "2 tags for 4 sequences"),
    "tags are numbers": ({"seqTags": np.arange(4)}, "not a list of strings"),
    "tags are not UTF-8": ({"seqTags": np.array([b"a", b"b", b"\xff", b"d"])}, "not UTF-8"),
    "no data at all": (
        {"inputs": None, "targets/data/classes": None, "seqLengths": table(LENGTHS)},
        "neither inputs nor targets/data",
    ),
    "text as input": ({"inputs": ["x"] * 9}, "not an array of numbers"),
    "compound input": ({"inputs": np.zeros(9, [("a", "i4"), ("b", "f4")])}, "not an array of numbers"),
    "fixed text as target": ({"targets/data/classes": np.array([b"x"] * 9)}, "not an array of numbers"),
    "null input": ({"inputs": h5py.Empty("f4")}, "not an array of numbers"),
    "scalar input": ({"inputs": np.array(1.0)}, "not an array of numbers"),
    "input is a group": ({"inputs": h5py.Group}, "'inputs' is a Group"),
    "a target is a group": ({"targets/data/classes": h5py.Group}, "is a Group"),
    "two keys called data": (
        {"targets/data/data": np.arange(9), "seqLengths": table(*[LENGTHS] * 3)},
        "both inputs and targets/data/data",
    ),
    "labels are numbers": ({"labels": np.arange(4)}, "not a list of strings"),
    "times of another length": ({"times": np.arange(8.0)}, "add up to 9 frames, but 8"),
}


@pytest.mark.parametrize("case", BAD_PARTS)
def test_a_part_that_is_wrong_is_named_with_both_values(tmp_path, case, write_layout):
    parts, message = BAD_PARTS[case]
    path = write_layout(tmp_path / "corpus.hdf", parts)
    with pytest.raises(SourceError) as caught:
        HDFSource(path, index=None)
    assert message in caught.value.what
    assert str(path) in caught.value.where


@pytest.mark.parametrize("size", ["many", 2.5, -3, np.zeros(0, np.int64)])
def test_a_size_that_is_no_dim_is_refused(tmp_path, size, write_layout):
    path = write_layout(tmp_path / "corpus.hdf", sizes={"classes": size})
    with pytest.raises(SourceError, match="attribute classes of targets/size"):
        HDFSource(path, index=None)


def test_a_file_that_a_writer_holds_is_refused_with_the_reason(tmp_path):
    path = tmp_path / "corpus.hdf"
    script = f"import h5py; file = h5py.File({str(path)!r}, 'w'); print('open', flush=True); input(); file.close()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout.readline() == b"open\n"
        with pytest.raises(SourceError, match="wait until its writer is done"):
            HDFSource(path, index=None)
        writer.communicate(b"\n")


def stored_elsewhere(file, name, other):
    data = np.arange(9, dtype=np.int32)
    file.create_dataset(name, data.shape, "i4", external=[(other, 0, data.nbytes)])


def virtual(file, name, other):
    layout = h5py.VirtualLayout((9,), "i4")
    layout[:] = h5py.VirtualSource(other, "targets/data/classes", (9,))
    file.create_virtual_dataset(name, layout)


def linked(file, name, other):
    file[name] = h5py.ExternalLink(other, "/" + name)


def linked_in_two_steps(file, name, other):
    file["elsewhere"] = h5py.ExternalLink(other, "/")
    file[name] = h5py.SoftLink("/elsewhere/" + name)


OUTSIDE = [
    *((name, stored_elsewhere) for name in ("inputs", "targets/data/classes", "seqLengths", "seqTags", "times")),
    *((name, virtual) for name in ("inputs", "targets/data/classes", "labels", "targets/labels/classes")),
    *(
        (name, linked)
        for name in ("inputs", "targets", "targets/data", "targets/data/classes", "targets/size", "seqTags")
    ),
    *((name, linked_in_two_steps) for name in ("inputs", "targets/data/classes", "seqLengths", "targets/labels")),
]


@pytest.mark.parametrize(("name", "put_outside"), OUTSIDE)
def test_a_part_in_another_file_is_refused(tmp_path, name, put_outside, write_layout):
    other = write_layout(tmp_path / "other.hdf")
    path = write_layout(tmp_path / "corpus.hdf")
    with h5py.File(path, "a") as file:
        if name in file:
            del file[name]
        put_outside(file, name, str(other))
    with pytest.raises(SourceError, match="only data inside the file are read") as caught:
        HDFSource(path, index=None)
    assert name.split("/")[-1] in caught.value.what
    assert caught.value.where == str(path)
    assert caught.value.fix == "copy the data into the file"


def test_links_that_go_round_in_a_circle_are_refused(tmp_path, write_layout):
    path = write_layout(tmp_path / "corpus.hdf", {"inputs": None})
    with h5py.File(path, "a") as file:
        file["inputs"], file["more"] = h5py.SoftLink("/more"), h5py.SoftLink("/inputs")
    with pytest.raises(SourceError, match="circle"):
        HDFSource(path, index=None)


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "corpus.hdf"
    with HDFWriter(path) as writer:
        for idx in range(20):
            writer.append(f"seq{idx}", {"data": np.full((10, 5), idx, np.float32), "classes": np.arange(10)})
    return path


@examples(100)
@given(data=st.data())
def test_damaged_descriptions_give_an_error_of_ours_or_some_data(tmp_path_factory, whole_file, data):
    content = bytearray(whole_file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 2047))] = data.draw(st.integers(0, 255))
    damaged = tmp_path_factory.mktemp("damaged") / "corpus.hdf"
    damaged.write_bytes(content)
    with contextlib.suppress(SourceError):
        source = HDFSource(damaged, index=None)
        for idx in range(len(source)):
            source.read_seq(idx)


def test_a_chunk_that_cannot_be_unpacked_gives_an_error(tmp_path):
    path = tmp_path / "corpus.hdf"
    with HDFWriter(path, compression="gzip") as writer:
        writer.append("a", {"data": np.random.default_rng(0).random((400, 20))})
    with h5py.File(path) as file:
        chunk = file["inputs"].id.get_chunk_info(0)
    with open(path, "r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff" * chunk.size)
    source = HDFSource(path, index=None)
    with pytest.raises(SourceError, match="of 'data'"):
        source.read(0, "data")


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_more_files_than_descriptors_are_read_with_fewer_of_them_open(tmp_path, compression):
    paths = [tmp_path / f"{idx}.hdf" for idx in range(30)]
    for idx, path in enumerate(paths):
        with HDFWriter(path, compression=compression) as writer:
            writer.append("a", {"data": np.full((4, 2), idx, np.float32)})
    source = HDFSource(paths, index=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 5, hard))
    try:
        found = [source.read(idx, "data")[0, 0] for idx in [*range(30), *range(29, -1, -1), *range(0, 30, 7)]]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        source.close()
    assert found == [*range(30), *range(29, -1, -1), *range(0, 30, 7)]


DIFFERENCES = {
    "a key more": ({"targets/data/more": np.arange(9), "seqLengths": table(*[LENGTHS] * 3)}, {}, "different keys"),
    "a key less": ({"targets/data/classes": None, "seqLengths": table(LENGTHS)}, {}, "different keys"),
    "another key": ({"targets/data/classes": None, "targets/data/other": np.arange(9)}, {}, "'other'"),
    "another dtype": (
        {"targets/data/classes": np.arange(9, dtype=np.int64)},
        {},
        "'classes': int32[T] with dim 9, but int64[T]",
    ),
    "another frame": (
        {"inputs": np.ones((9, 5), np.float32)},
        {},
        "float32[T, 4] with dim 4, but float32[T, 5] with dim 5",
    ),
    "another dim": ({}, {"classes": [11, 1]}, "dim 9, but int32[T] with dim 11"),
}


@pytest.mark.parametrize("case", DIFFERENCES)
def test_files_that_disagree_are_both_named_with_both_values(tmp_path, case, write_layout):
    parts, sizes, message = DIFFERENCES[case]
    first = write_layout(tmp_path / "first.hdf", sizes={"classes": [9, 1]})
    has_classes = parts.get("targets/data/classes", "unchanged") is not None
    second = write_layout(tmp_path / "second.hdf", parts, sizes={"classes": [9, 1], **sizes} if has_classes else None)
    with pytest.raises(SourceError) as caught:
        HDFSource([first, second], index=None)
    assert message in caught.value.what
    assert str(first) in caught.value.where
    assert str(second) in caught.value.where


def test_a_dim_that_only_one_of_the_files_knows_counts_for_all(tmp_path, write_layout):
    first, second = write_layout(tmp_path / "first.hdf"), write_layout(tmp_path / "second.hdf", sizes={"classes": 11})
    assert HDFSource([first, second], index=None).specs["classes"].dim == 11
    assert HDFSource([second, first], index=None).specs["classes"].dim == 11


def test_a_link_that_leads_nowhere_and_a_name_that_is_no_text_are_refused(tmp_path, write_layout):
    path = write_layout(tmp_path / "link.hdf", {"inputs": None})
    with h5py.File(path, "a") as file:
        file["inputs"] = h5py.SoftLink("/nowhere")
    with pytest.raises(SourceError, match="'inputs' cannot be opened"):
        HDFSource(path, index=None)
    path = write_layout(tmp_path / "name.hdf")
    with h5py.File(path, "a") as file:
        file["targets/data"].create_dataset(b"\xff", data=np.arange(9))
    with pytest.raises(SourceError, match="not UTF-8"):
        HDFSource(path, index=None)


@pytest.mark.parametrize("rows", [2**40, 2**33, 10**9])
@pytest.mark.parametrize("name", ["inputs", "seqLengths", "seqTags", "labels", "times"])
def test_a_small_file_that_claims_very_many_rows_is_refused_before_they_are_read(tmp_path, name, rows):
    path = tmp_path / "huge.hdf"
    with h5py.File(path, "w") as file:
        for dataset, shape, dtype in (
            ("inputs", (4, 2), "f4"),
            ("times", (4, 2), "f4"),
            ("seqLengths", (2, 1), "i4"),
            ("seqTags", (2,), "S3"),
            ("labels", (2,), "S3"),
        ):
            is_huge = dataset == name
            stored = file.create_dataset(
                dataset,
                (rows, *shape[1:]) if is_huge else shape,
                dtype,
                chunks=(1000, *shape[1:]) if is_huge else None,
            )
            if dataset == "seqLengths" and not is_huge:
                stored[...] = 2
    with pytest.raises(SourceError, match=r"claims to be|add up to"):
        HDFSource(path, index=None)

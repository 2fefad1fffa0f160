"""`NumpyFolderSource` and `NumpyFolderWriter`: layouts, forms of arrays, exact round trips, and what is refused."""

import ctypes
import os
import pickle
import resource
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.files.atomic.names import temporary_name
from headrace.sources import NumpyFolderSource, NumpyFolderWriter
from headrace.specs import DataSpec
from headrace.testing import check_source

SPECS = {
    "data": DataSpec("float32", (3,), dim=3),
    "classes": DataSpec("int32", (), sparse=True, dim=4),
    "number": DataSpec("int64", (), sparse=False, dim=1, has_time=False),
}
LABELS = {"classes": ["a", "b", "c", "d"]}
TAGS = ["b/2", "a.x", "b/1", "c"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))


def seqs():
    rng = np.random.default_rng(0)
    for number, tag in enumerate(TAGS):
        frames = 2 * number
        data = rng.normal(size=(frames, 3)).astype(np.float32)
        yield tag, {"data": data, "classes": rng.integers(0, 4, frames).astype(np.int32), "number": np.array(number)}


def write(path, **options):
    with NumpyFolderWriter(path, specs=SPECS, labels=LABELS, **options) as writer:
        for tag, arrays in seqs():
            writer.append(tag, arrays)
    return path


# --- what comes out ---


@pytest.mark.parametrize("layout", ["file", "suffix", "folder"])
def test_what_was_written_is_read_back_with_its_order_layouts_and_labels(tmp_path, layout):
    source = NumpyFolderSource(write(tmp_path / "corpus", layout=layout))
    assert list(source.index.tags) == TAGS
    assert source.specs == SPECS
    assert source.labels == LABELS
    for number, (_, arrays) in enumerate(seqs()):
        for key, array in source.read_seq(number).items():
            np.testing.assert_array_equal(array, arrays[key], strict=True)
    assert source.has_fast_rows
    check_source(source)
    source.close()


def test_numpy_reads_each_file_that_was_written(tmp_path):
    root = write(tmp_path / "corpus")
    with np.load(root / "b" / "1.npz", allow_pickle=False) as archive:
        arrays = dict(list(seqs())[2][1])
        assert sorted(archive) == sorted(arrays)
        np.testing.assert_array_equal(archive["data"], arrays["data"], strict=True)


def test_files_of_numpy_in_any_form_are_read(tmp_path):
    rng = np.random.default_rng(1)
    plain, fortran = rng.normal(size=(4, 3)), np.asfortranarray(rng.normal(size=(2, 3)))
    swapped = rng.normal(size=(5, 3)).astype(">f8")
    for name, array in (("a", plain), ("b", fortran), ("c", swapped), ("d", np.zeros((0, 3)))):
        np.save(tmp_path / f"{name}.npy", array)
    source = NumpyFolderSource(tmp_path)
    assert source.specs == {"data": DataSpec("float64", (3,), dim=3)}
    for corpus_idx, array in enumerate((plain, fortran, swapped)):
        np.testing.assert_array_equal(source.read(corpus_idx, "data"), array)
    assert not source.has_fast_rows
    check_source(source)
    source.close()


def test_compressed_and_plain_archives_are_read(tmp_path):
    arrays = {"x": np.arange(12, dtype=np.int16).reshape(4, 3), "y": np.arange(5), "z": np.array(2.5)}
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    np.savez(tmp_path / "b.npz", **{key: array[:2] if array.ndim else array for key, array in arrays.items()})
    source = NumpyFolderSource(tmp_path)
    assert source.index.lengths("x").tolist() == [4, 2]
    np.testing.assert_array_equal(source.read_slice(0, "x", 1, 3), arrays["x"][1:3], strict=True)
    assert source.read(1, "z") == 2.5
    check_source(source)
    source.close()


def test_fields_choose_and_rename_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", feats=np.ones((2, 3)), text=np.array("no number"))
    source = NumpyFolderSource(tmp_path, fields={"data": "feats", "again": {"field": "feats"}})
    assert list(source.specs) == ["data", "again"]
    np.testing.assert_array_equal(source.read(0, "again"), np.ones((2, 3)))
    with pytest.raises(SourceError, match="not an array of numbers"):
        NumpyFolderSource(tmp_path)
    source.close()


def test_what_the_folder_says_of_itself_follows_its_arrays_to_other_names(tmp_path):
    source = NumpyFolderSource(write(tmp_path / "corpus"), fields={"words": "classes"})
    assert source.specs == {"words": SPECS["classes"]}
    assert source.labels == {"words": LABELS["classes"]}
    with pytest.raises(ConfigError, match="a spec for 'other'"):
        NumpyFolderSource(tmp_path / "corpus", fields={"words": "classes"}, specs={"other": {"dim": 3}})


def test_the_folder_of_a_file_can_be_its_class(tmp_path):
    for name in ("no/1", "yes/1", "yes/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / f"{name}.npy", np.zeros((1, 2)))
    source = NumpyFolderSource(tmp_path, label="folder")
    assert source.labels == {"classes": ["no", "yes"]}
    assert [int(source.read(i, "classes")[0]) for i in range(3)] == [0, 1, 1]
    check_source(source)
    np.save(tmp_path / "top.npy", np.zeros((1, 2)))
    with pytest.raises(SourceError, match="no sub-folder"):
        NumpyFolderSource(tmp_path, label="folder")
    source.close()


def test_a_list_of_files_keeps_its_order(tmp_path):
    for name in ("a", "b", "c"):
        np.save(tmp_path / f"{name}.npy", np.full((1,), ord(name)))
    source = NumpyFolderSource([tmp_path / "c.npy", tmp_path / "a.npy"])
    assert list(source.index.tags) == ["c", "a"]
    assert source.read(0, "data").tolist() == [ord("c")]
    with pytest.raises(SourceError, match="named twice"):
        NumpyFolderSource([tmp_path / "c.npy", tmp_path / "c.npy"])
    source.close()


def test_an_axis_may_differ_where_the_spec_says_so(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.ones((2, 5), np.float32))
    with pytest.raises(SourceError, match=r"float32\[2, 5\].*\[T, 3\].*\n.*b, compared with .*a"):
        NumpyFolderSource(tmp_path)
    source = NumpyFolderSource(tmp_path, specs={"data": {"shape": (None, None), "dtype": "float32"}})
    assert source.read(1, "data").shape == (2, 5)
    check_source(source)
    source.close()


def test_a_large_folder_is_indexed_once_until_a_file_changes(tmp_path):
    root = tmp_path / "corpus"
    with NumpyFolderWriter(root) as writer:
        for number in range(2000):
            writer.append(f"{number % 7}/{number}", {"data": np.full((number % 3,), number, np.int32)})
    first = NumpyFolderSource(root)
    assert first.index.path is not None
    second = NumpyFolderSource(root)
    assert second.index.path == first.index.path
    np.save(root / "1" / "1.npy", np.arange(9, dtype=np.int32))
    third = NumpyFolderSource(root)
    assert third.index.path == first.index.path
    assert third.read(1, "data").tolist() == list(range(9))
    with pytest.raises(SourceError, match="changed since it was indexed"):
        first.read(1, "data")
    copy = pickle.loads(pickle.dumps(third))
    assert copy.read(1, "data").tolist() == list(range(9))
    for source in (first, second, third, copy):
        source.close()


def test_a_saved_index_is_one_of_these_files_only(tmp_path):
    root = write(tmp_path / "corpus")
    source = NumpyFolderSource(root)
    source.index.save(tmp_path / "own.hrindex")
    assert NumpyFolderSource(root, index=tmp_path / "own.hrindex").index.digest == source.index.digest
    with np.load(root / "c.npz") as archive:
        np.savez(root / "c.npz", **{key: archive[key][..., :1] for key in ("data", "classes")}, number=np.array(1))
    with pytest.raises(SourceError, match="changed since the index"):
        NumpyFolderSource(root, index=tmp_path / "own.hrindex")
    source.close()


@given(st.data())
@settings(max_examples=25)
def test_any_arrays_come_back_bit_by_bit(tmp_path_factory, data):
    dtypes = st.sampled_from(["float32", "float16", "int64", "uint8", "complex64", "bool"])
    keys = data.draw(st.dictionaries(st.text("abxyz", min_size=1, max_size=3), st.tuples(dtypes, st.integers(0, 2))))
    keys = keys or {"data": ("float32", 1)}
    lengths = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    rng = np.random.default_rng(len(lengths))
    corpus = [
        {key: (rng.normal(size=(length, *range(2, 2 + axes))) * 9).astype(dtype) for key, (dtype, axes) in keys.items()}
        for length in lengths
    ]
    path = tmp_path_factory.mktemp("any") / "corpus"
    layout = data.draw(st.sampled_from(["file", "suffix", "folder"]))
    with NumpyFolderWriter(path, layout=layout) as writer:
        for number, arrays in enumerate(corpus):
            writer.append(f"s/{number}", arrays)
    source = NumpyFolderSource(path, index=None)
    for number, arrays in enumerate(corpus):
        for key, array in arrays.items():
            np.testing.assert_array_equal(source.read(number, key), array, strict=True)
    source.close()


# --- what is refused ---


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_followed(tmp_path):
    root, outside = tmp_path / "corpus", tmp_path / "outside.npy"
    root.mkdir()
    np.save(root / "a.npy", np.zeros(2))
    np.save(outside, np.zeros(2))
    (root / "b.npy").symlink_to(root / "a.npy")
    source = NumpyFolderSource(root)
    assert list(source.index.tags) == ["a", "b"]
    source.close()
    (root / "c.npy").symlink_to(outside)
    with pytest.raises(SourceError, match="outside its root"):
        NumpyFolderSource(root)
    (root / "c.npy").unlink()
    (root / "circle").symlink_to(root)
    with pytest.raises(SourceError, match="circle"):
        NumpyFolderSource(root)


def test_objects_are_never_unpickled(tmp_path):
    np.save(tmp_path / "a.npy", np.array([print, "x"], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match="pickled objects, which are never loaded"):
        NumpyFolderSource(tmp_path)


def test_a_torn_file_is_named_when_the_index_is_built(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 3)))
    size = os.path.getsize(tmp_path / "a.npy")
    os.truncate(tmp_path / "a.npy", size - 1)
    with pytest.raises(SourceError, match=rf"truncated: it has {size - 1} bytes.*end at byte {size}\n.*a\.npy"):
        NumpyFolderSource(tmp_path)
    os.truncate(tmp_path / "a.npy", 40)
    with pytest.raises(SourceError, match="header"):
        NumpyFolderSource(tmp_path)
    os.truncate(tmp_path / "a.npy", 0)
    with pytest.raises(SourceError, match="not a file in NumPy's format"):
        NumpyFolderSource(tmp_path)


def test_damage_in_a_compressed_array_is_found_when_it_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(50, 3)))
    source = NumpyFolderSource(tmp_path)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[400:500] = bytes(100)
    status = os.stat(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_bytes(content)
    os.utime(tmp_path / "a.npz", ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match="compressed array"):
        source.read(0, "x")
    source.close()


def test_an_archive_with_a_member_twice_or_one_that_leads_out_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(2))
    content = (tmp_path / "x.npy").read_bytes()
    for names, what in ((["x.npy", "x.npy"], "twice"), (["../x.npy"], "leads out")):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)
            for name in names:
                archive.writestr(name, content)
        with pytest.raises(SourceError, match=what):
            NumpyFolderSource([tmp_path / "a.npz"])


def test_sequences_must_be_alike(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(2), y=np.zeros(2))
    np.savez(tmp_path / "b.npz", x=np.zeros(2))
    with pytest.raises(SourceError, match=r"\['x'\].*\['x', 'y'\].*\n.*b, compared with .*a"):
        NumpyFolderSource(tmp_path)
    np.savez(tmp_path / "b.npz", x=np.zeros(2), y=np.zeros(2, np.float32))
    with pytest.raises(SourceError, match=r"'y': this is float32\[2\], and float64\[T\] is wanted"):
        NumpyFolderSource(tmp_path)
    np.save(tmp_path / "c.npy", np.zeros(2))
    with pytest.raises(SourceError, match=r"both \.npy and \.npz"):
        NumpyFolderSource(tmp_path)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"layout": "tree"}, "unknown layout"),
        ({"label": "file"}, "label='file'"),
        ({"label": "folder", "layout": "folder"}, "label='folder' with layout='folder'"),
        ({"fields": {"data": 3}}, "field of 'data'"),
        ({"labels": {"other": ["a"]}}, "unknown data key 'other'"),
        ({"specs": {"data": {"shape": "x"}}}, "a shape is a tuple"),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, what):
    np.save(tmp_path / "a.npy", np.zeros(2))
    with pytest.raises(ConfigError, match=what):
        NumpyFolderSource(tmp_path, **options)


def test_names_that_do_not_fit_the_layout_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(2))
    for layout in ("suffix", "folder"):
        with pytest.raises(SourceError, match="not of the form"):
            NumpyFolderSource(tmp_path, layout=layout)
    with pytest.raises(SourceError, match="does not exist"):
        NumpyFolderSource(tmp_path / "missing")


# --- the writer ---


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    writer = NumpyFolderWriter(tmp_path / "corpus")
    writer.append("a", {"data": np.zeros(2)})
    assert not (tmp_path / "corpus").exists()
    with pytest.raises(RuntimeError), writer:
        raise RuntimeError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("layout", ["file", "suffix", "folder"])
@pytest.mark.parametrize(
    "tag", ["x" * 300, "x/" * 3000 + "x", "headrace.json/x", "first.npz/x", "first.a.npy/x", "first.npy/x"]
)
def test_a_tag_that_the_system_takes_for_no_file_is_refused_or_kept_and_the_writer_goes_on(tmp_path, layout, tag):
    data = {"a": np.arange(3), "b": np.zeros(1, np.float32)}
    tags = ["first"]
    with NumpyFolderWriter(tmp_path / "corpus", layout=layout) as writer:
        writer.append("first", data)
        try:
            writer.append(tag, data)
        except SourceError as error:
            assert "cannot be the name of a file" in error.what  # noqa: PT017
        else:
            tags.append(tag)
        writer.append("last", data)
    source = NumpyFolderSource(tmp_path / "corpus")
    assert source.index.tags[:] == [*tags, "last"]
    assert all(source.read(i, "a").tolist() == [0, 1, 2] for i in range(len(source)))
    source.close()
    assert len(tags) == 1 or len(tag) < 100


def test_deep_nesting_in_what_the_folder_says_of_itself_is_refused(tmp_path):
    with NumpyFolderWriter(tmp_path / "corpus") as writer:
        writer.append("a", {"data": np.zeros(2)})
    (tmp_path / "corpus" / "headrace.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match="cannot be read"):
        NumpyFolderSource(tmp_path / "corpus")


def test_a_header_of_sizes_that_no_array_can_have_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 7)))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(0, 7), }" + b" " * 17, b"(0, %d), }" % 2**60))
    with pytest.raises(SourceError, match="says the shape"):
        NumpyFolderSource(tmp_path)


def test_a_sequence_that_is_refused_leaves_nothing(tmp_path):
    with NumpyFolderWriter(tmp_path / "corpus") as writer:
        writer.append("a", {"data": np.zeros(2)})
        for tag in ("a", "", "../b", "/b", ".b", "a//b", "b\0", "b\n"):
            with pytest.raises(SourceError, match="tag"):
                writer.append(tag, {"data": np.zeros(2)})
        for data in ({}, {"data": np.zeros(2, np.float32)}, {"other": np.zeros(2)}, {"data": np.array(["x"])}):
            with pytest.raises(SourceError):
                writer.append("b", data)
        writer.append("b", {"data": np.ones(3)})
        assert writer.num_seqs == 2
    with pytest.raises(ConfigError, match="closed"):
        writer.append("c", {"data": np.ones(3)})
    source = NumpyFolderSource(tmp_path / "corpus")
    assert list(source.index.tags) == ["a", "b"]
    source.close()


def test_the_writer_turns_foreign_byte_orders_around(tmp_path):
    with NumpyFolderWriter(tmp_path / "corpus") as writer:
        writer.append("a", {"data": np.arange(3, dtype=">i4")})
        writer.append("b", {"data": np.arange(3, dtype="<i4")})
    source = NumpyFolderSource(tmp_path / "corpus")
    assert source.read(0, "data").tolist() == source.read(1, "data").tolist() == [0, 1, 2]
    assert source.has_fast_rows
    source.close()


def test_only_a_folder_of_ours_is_replaced(tmp_path):
    root = write(tmp_path / "corpus")
    with pytest.raises(ConfigError, match="exists"):
        NumpyFolderWriter(root)
    with NumpyFolderWriter(root, overwrite=True) as writer:
        writer.append("new", {"data": np.zeros(2)})
        assert (root / "c.npz").exists()
    assert sorted(os.listdir(root)) == ["headrace-tags.jsonl", "headrace.json", "new.npy"]
    assert os.listdir(tmp_path) == ["corpus"]
    other = tmp_path / "photos"
    other.mkdir()
    with pytest.raises(ConfigError, match="not of this format"):
        NumpyFolderWriter(other, overwrite=True)


def test_what_a_dead_writer_left_is_removed_by_the_next_one(tmp_path):
    # Its name is that of a process of this machine that does not run any more.
    place, _, _ = temporary_name().removeprefix(".headrace-").split("-", 2)
    left = tmp_path / "x" / f".headrace-{place}-4194304-1-0123456789abcdef.tmp"
    left.mkdir(parents=True)
    (left / "a.npy").touch()
    with NumpyFolderWriter(tmp_path / "x" / "corpus") as writer:
        writer.append("a", {"data": np.zeros(2)})
    assert os.listdir(tmp_path / "x") == ["corpus"]


def test_a_folder_that_is_not_as_it_was_written_is_refused(tmp_path):
    root = write(tmp_path / "corpus")
    (root / "c.npz").rename(root / "d.npz")
    with pytest.raises(SourceError, match="'c' is missing"):
        NumpyFolderSource(root)
    (root / "headrace-tags.jsonl").write_text('"b/2"\n"a.x"\n"b/1"\n')
    with pytest.raises(SourceError, match="'d' was added"):
        NumpyFolderSource(root)
    (root / "headrace.json").write_text("{}")
    with pytest.raises(SourceError, match="description of the folder cannot be read"):
        NumpyFolderSource(root)


def test_an_empty_corpus_keeps_its_layouts(tmp_path):
    with NumpyFolderWriter(tmp_path / "corpus", specs=SPECS, labels=LABELS):
        pass
    source = NumpyFolderSource(tmp_path / "corpus")
    assert len(source) == 0
    assert source.specs == SPECS
    check_source(source)


@pytest.fixture
def small_files():
    """A limit of 1 MB a file stands for a full disk: the system refuses to write more, by an error of the same kind."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("keys", [("data",), ("x", "y")])
@pytest.mark.usefixtures("small_files")
def test_a_full_disk_ends_the_writer_and_leaves_nothing(tmp_path, keys):
    writer = NumpyFolderWriter(tmp_path / "corpus")
    writer.append("a", {key: np.zeros(10) for key in keys})
    with pytest.raises(SourceError, match=r"cannot write: File too large"):
        writer.append("b", {key: np.zeros(1 << 18) for key in keys})
    with pytest.raises(ConfigError, match="closed"):
        writer.append("c", {key: np.zeros(10) for key in keys})
    writer.close()
    assert os.listdir(tmp_path) == []


def test_a_folder_is_replaced_where_the_system_cannot_exchange_names(tmp_path, monkeypatch):
    root = write(tmp_path / "corpus")
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with NumpyFolderWriter(root, overwrite=True) as writer:
        writer.append("new", {"data": np.zeros(2)})
    assert sorted(os.listdir(root)) == ["headrace-tags.jsonl", "headrace.json", "new.npy"]
    assert os.listdir(tmp_path) == ["corpus"]


def test_a_source_that_is_dropped_closes_its_files(tmp_path):
    source = NumpyFolderSource(write(tmp_path / "corpus"))
    before = len(os.listdir("/proc/self/fd"))
    source.read(2, "data")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del source
    assert len(os.listdir("/proc/self/fd")) == before

"""A source from a dict, or from what lies at a path."""

from __future__ import annotations

import bz2
import gzip
import lzma
import pickle
import re
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError, NotCarriedOverError, SourceError
from headrace.exports import DEPARTED
from headrace.sources import HDFSource, HDFWriter, MemorySource, Source, init_source, open_source
from headrace.sources.formats import find_format, format_named, format_of_target
from headrace.sources.registry import open_writer

SEQS = [{"data": np.arange(length * 2, dtype=np.float32).reshape(length, 2)} for length in (3, 1, 4)]


class DoubledSource(MemorySource):
    """A source of somebody else, with an option of its own."""

    def __init__(self, files: str, *, factor: int = 2, index: str | None = "auto") -> None:
        super().__init__([{"data": seq["data"] * factor} for seq in SEQS])
        self.files, self.kept = files, index


@pytest.fixture
def hdf(tmp_path: Path) -> Path:
    return write_hdf(tmp_path / "a.hdf")


def write_hdf(path: Path, prefix: str = "a") -> Path:
    with HDFWriter(path) as writer:
        for number, seq in enumerate(SEQS):
            writer.append(f"{prefix}/{number}", seq)
    return path


def tags(source: Source) -> list[str]:
    source.close()
    return list(source.index.tags)


def test_a_dict_names_a_class_of_ours_or_of_somebody_else(hdf: Path) -> None:
    source = init_source({"class": "HDFSource", "files": [hdf], "index": None})
    assert isinstance(source, HDFSource)
    assert tags(source) == ["a/0", "a/1", "a/2"]
    source = init_source({"class": f"{__name__}:DoubledSource", "files": "x", "factor": 3})
    assert source.read(0, "data").tolist() == (SEQS[0]["data"] * 3).tolist()
    source = init_source({"class": DoubledSource, "files": "x"})
    assert isinstance(source, DoubledSource)
    assert init_source(source) is source


def test_options_fill_what_a_dict_leaves_out() -> None:
    source = init_source({"class": DoubledSource, "factor": 5}, factor=7, files="x")
    assert isinstance(source, DoubledSource)
    assert source.files == "x"
    assert source.read(1, "data").tolist() == (SEQS[1]["data"] * 5).tolist()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"class": "HDFSorce", "files": "x"}, "unknown source class 'HDFSorce'(?s:.)*did you mean 'HDFSource'"),
        ({"class": "HDFSource", "filse": "x"}, "no option 'filse'(?s:.)*did you mean 'files'"),
        ({"class": "HDFSource"}, "needs the option 'files'"),
        ({"files": "x"}, "needs the key 'class'"),
        ({"class": "no.such.module:Class"}, "cannot import"),
        ({"class": "os.path:join"}, "not a sub-class"),
        ({"class": 3}, "must be a name"),
        (3, "not a path|path or"),
        ([], "no files are named"),
        ("nothing://bucket/a.hdf", "nothing"),
    ],
)
def test_a_wrong_config_is_refused_with_the_nearest_name(config: object, message: str) -> None:
    with pytest.raises((ConfigError, TypeError), match=message):
        init_source(config)  # type: ignore[arg-type]


def test_a_source_that_is_built_takes_no_options() -> None:
    with pytest.raises(ConfigError, match="built already"):
        init_source(MemorySource(SEQS), index=None)


def test_the_first_bytes_say_what_a_file_is_whatever_its_name(hdf: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.jsonl"
    shutil.copy(hdf, odd)
    assert find_format(odd).source == "HDFSource"
    assert tags(open_source(odd)) == ["a/0", "a/1", "a/2"]


def test_files_of_one_format_are_one_corpus_in_their_order_and_patterns_by_name(tmp_path: Path) -> None:
    first, second = write_hdf(tmp_path / "1.hdf", "one"), write_hdf(tmp_path / "2.hdf", "two")
    assert tags(open_source([second, first]))[0] == "two/0"
    assert tags(open_source(str(tmp_path / "*.hdf")))[::3] == ["one/0", "two/0"]
    source = open_source([first, second], index=None)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(4, "data").tolist() == source.read(4, "data").tolist()
    copy.close()
    source.close()


def test_a_class_can_be_named_where_nothing_says_the_format(hdf: Path, tmp_path: Path) -> None:
    for name in ("HDFSource", "hdf", "headrace.sources:HDFSource"):
        assert tags(open_source(hdf, source_class=name)) == ["a/0", "a/1", "a/2"]
    with pytest.raises(ConfigError, match="unknown source class 'hfd'"):
        open_source(hdf, source_class="hfd")


def test_a_folder_is_the_files_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("2", "1"):
        write_hdf(folder / f"{name}.hdf", name)
    (folder / "notes.md").write_text("hello")
    (folder / ".3.hdf").write_text("hidden")
    assert tags(open_source(folder)) == ["1/0", "1/1", "1/2", "2/0", "2/1", "2/2"]


def test_what_is_of_no_format_is_refused_with_a_list_of_them(tmp_path: Path) -> None:
    unknown = tmp_path / "a.xyz"
    unknown.write_bytes(b"\x00\x01")
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, what in ((unknown, "neither bytes nor name of the file tell"), (folder, "no file in the folder tells")):
        with pytest.raises(SourceError, match=rf"(?s){what}.*HDF5 \(HDFSource\)") as error:
            open_source(path)
        assert error.value.where == str(path)
    with pytest.raises(SourceError, match="no such file"):
        open_source(tmp_path / "none.hdf")
    with pytest.raises(SourceError, match="no file matches"):
        open_source(str(tmp_path / "none-*.hdf"))


def test_damaged_lines_are_refused_by_the_source_that_they_would_have(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b'{"a": [1, 2]}\n' * 1000))
    packed[20] ^= 0xFF
    for name, content in (
        ("deep.jsonl", b"[" * 100_000 + b"\n"),
        ("deep2.jsonl", b'{"a": ' + b"[" * 100_000 + b"\n"),
        ("bad.jsonl.gz", bytes(packed)),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SourceError) as error:
            open_source(tmp_path / name)
        assert name in str(error.value.where)


def test_files_of_different_formats_are_refused_with_both(hdf: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "m.jsonl"
    manifest.write_text('{"tag": "x", "audio": "x.flac"}\n')
    with pytest.raises(ConfigError, match=r"HDF5 \(.*a.hdf\) and manifest \(.*m.jsonl\)"):
        open_source([hdf, manifest])
    with pytest.raises(ConfigError, match="opens one"):
        open_source([manifest, manifest])


def test_a_format_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be read, but not written"):
        open_writer(format_named("manifest"), tmp_path / "x")
    with pytest.raises(ConfigError, match=r"unknown format 'hfd'(?s:.)*did you mean 'hdf'"):
        format_named("hfd")
    assert format_of_target("x.unknown") is None


TAR_HEAD = b"a.txt".ljust(257, b"\0") + b"ustar\x0000".ljust(255, b"\0")

# As pyarrow begins a stream: the mark, the size of the message, and the message with its kind, "schema".
STREAM_HEAD = bytes.fromhex("ffffffff780000001000000000000a000c000600050008000a000000000104000c000000") + bytes(200)


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("x", b"\x89HDF\r\n\x1a\n", "HDFSource"),
        ("x", TAR_HEAD, "TarSource"),
        ("x.tgz", b"\x1f\x8b", "TarSource"),
        ("x", b"PAR1", "ParquetSource"),
        ("x", b"ARROW1\0\0", "ArrowSource"),
        ("x", STREAM_HEAD, "ArrowSource"),
        ("x.bin", b"\xff" * 200, "TokenSource"),
        ("x.bin", b"\xff\xff\xff\xff" + bytes(range(1, 200)), "TokenSource"),
        ("x.zip", b"PK\x03\x04", "OggZipSource"),
        ("x.WAV", b"RIFF", "AudioFolderSource"),
        ("x", b"fLaC", "AudioFolderSource"),
        ("x.bin", b"\x01\x02", "TokenSource"),
        ("x.txt", b"hello", "TextSource"),
        ("x.txt.gz", gzip.compress(b"hello", mtime=0), "TextSource"),
        ("x.jsonl", b'{"tag": "a", "audio": "a.wav"}\n', "AudioSource"),
        ("x.jsonl", b'\xef\xbb\xbf{"tag": "a", "text": "b"}\n', "JsonlSource"),
        ("x.jsonl", b"not JSON", "JsonlSource"),
    ],
)
def test_a_file_is_known_by_its_mark_its_name_or_its_first_line(
    tmp_path: Path, name: str, content: bytes, found: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert find_format(tmp_path / name).source == found


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["state.json", "dataset_info.json", "data-00000-of-00001.arrow"], "HuggingFaceSource"),
        (["README.txt", "speaker/1.flac", "speaker/1.txt"], "AudioFolderSource"),
        (["a.txt", "b.txt"], "TextSource"),
        ([".hidden/a.wav", "b/c/d.png"], "ImageFolderSource"),
        (["a.idx", "a.tar"], "TarSource"),  # as other programs leave an index of a tar
        (["a.bin", "a.idx", "a.tags.txt"], "TokenSource"),
    ],
)
def test_a_folder_is_known_by_what_is_in_it(tmp_path: Path, names: list[str], found: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert find_format(tmp_path).source == found


@pytest.mark.parametrize("name", ["a.npy", "b.safetensors"])
def test_arrays_in_files_are_for_a_dataset_of_ones_own(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(SourceError, match=r"map-style dataset over np\.load"):
            open_source(path)


@pytest.mark.extra
@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".zst"])
def test_files_of_a_folder_are_all_read_however_they_are_compressed(tmp_path: Path, suffix: str) -> None:
    content = b'{"n": 2}\n{"n": 3}\n'
    if suffix == ".zst":
        compressed = pytest.importorskip("pyarrow").compress(content, codec="zstd", asbytes=True)
    else:
        compressed = (bz2 if suffix == ".bz2" else lzma).compress(content)
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n')
    (tmp_path / f"b.jsonl{suffix}").write_bytes(compressed * 2)  # as `cat` joins compressed files
    source = open_source(tmp_path)
    assert [int(source.read(number, "n")) for number in range(len(source))] == [1, 2, 3, 2, 3]
    source.close()
    assert find_format(tmp_path / f"b.jsonl{suffix}").name == "jsonl"
    (tmp_path / f"b.jsonl{suffix}").write_bytes(compressed[:-6])
    with pytest.raises(SourceError, match="damaged"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["b.jsonl.lz4", "b.jsonl.zip", "c.NDJSON.BR"])
def test_a_folder_with_files_of_a_compression_that_is_not_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n": 1}\n')
    (tmp_path / name).write_bytes(b"?")
    with pytest.raises(SourceError, match=rf"(?s)compressed in a way.*{re.escape(name)}"):
        open_source(tmp_path)
    source = open_source(str(tmp_path / "*.jsonl"))
    assert len(source) == 1
    source.close()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_first_document_of_megabytes_makes_no_manifest_of_json_lines(tmp_path: Path, suffix: str) -> None:
    content = b'{"text": "' + b"book " * 500_000 + b'"}\n{"text": "b"}\n'
    (tmp_path / f"a.jsonl{suffix}").write_bytes(gzip.compress(content, 1) if suffix else content)
    source = open_source(tmp_path, fields={"data": {"field": "text", "vocab": "bytes"}})
    assert source.index.lengths("data").tolist() == [2_500_000, 1]
    source.close()


def test_a_folder_named_datasets_is_not_taken_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", types.ModuleType("datasets"))
    monkeypatch.setitem(sys.modules, "datasets.arrow_dataset", None)
    with pytest.raises(ConfigError, match=r"needs the package datasets"):
        init_source({"class": "HuggingFaceSource", "dataset": "anywhere"})


@pytest.mark.parametrize("name", sorted(DEPARTED))
def test_a_class_that_is_no_longer_offered_says_what_to_use(name: str) -> None:
    with pytest.raises(NotCarriedOverError, match=re.escape(DEPARTED[name])):
        hr.sources.init_source({"class": name})
    with pytest.raises(NotCarriedOverError, match=re.escape(DEPARTED[name])):
        getattr(hr, name)

"""Files: listing, opening, lines, tables, archives, hashes, saving. The fixture sees that none stays open."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import socket
import tarfile
import zipfile
from pathlib import Path

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.pipes.graph.state import graph_state, restore_graph
from headrace.pipes.iter import FileLister, FSSpecFileLister, IterableWrapper, StreamWrapper

FILES = {"a.txt": "l1\nl2\n\nl3\n", "b.csv": 'k,v\n1,2\n3,"4\n5"\n', "c.json": '{"x": [1]}', "sub/z.txt": "zz\r\n"}
MEMBERS = {"1.cls": b"0", "1.jpg": b"AAA", "2.cls": b"1", "2.jpg": b"BBB", "d/3.seg.png": b"C"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_bytes(text.encode())
    write_tar(tmp_path / "t.tar", MEMBERS)
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.mkdir("folder")
        for name, data in MEMBERS.items():
            archive.writestr(name, data)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_tar(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def opened(mask, mode="b"):
    return FileLister(".", mask).open_files(mode)


def contents(pipe):
    return [(path, stream.read()) for path, stream in pipe]


def test_files_are_listed_sorted_by_mask_and_deep_if_asked(folder):
    assert list(FileLister(".", "*.txt")) == ["./a.txt"]
    assert list(FileLister(".", ["*.txt", "*.csv"], recursive=True)) == ["./a.txt", "./b.csv", "./sub/z.txt"]
    assert list(IterableWrapper(["sub", ".", "a.txt"]).list_files("*.txt")) == ["sub/z.txt", "./a.txt", "a.txt"]
    assert list(FileLister("sub", abspath=True)) == [str(folder / "sub" / "z.txt")]


def test_a_missing_folder_is_an_error(folder):
    with pytest.raises(FileNotFoundError, match="nope"):
        list(FileLister(["sub", "nope"]))


def test_the_length_of_a_listing_is_what_one_says(folder):
    assert len(FileLister(".", length=7)) == 7
    with pytest.raises(TypeError, match="length"):
        len(FileLister("."))


def test_files_are_opened_as_bytes_or_text(folder):
    assert contents(opened("c.json", "b")) == [("./c.json", b'{"x": [1]}')]
    assert contents(opened("c.json", "t")) == [("./c.json", '{"x": [1]}')]
    for mode, encoding in (("q", None), ("w", None), ("b", "utf8")):
        with pytest.raises(ConfigError, match="mode"):
            FileLister(".").open_files(mode, encoding)


def test_a_file_is_closed_with_the_last_reference(folder):
    pipe = opened("*.txt")
    _, stream = next(iter(pipe))
    assert stream.readable()
    del stream


def test_a_stream_closes_itself_at_its_end_if_asked(folder):
    stream = StreamWrapper(open("a.txt"), name="mine")  # noqa: SIM115
    stream.autoclose()
    assert stream.read(2) == "l1"
    assert not stream.closed
    stream.read()
    assert stream.closed
    assert "mine" in repr(stream)
    with StreamWrapper(io.BytesIO(b"x")) as other:
        assert other.read() == b"x"
    assert other.closed


def test_lines_come_with_or_without_paths_ends_and_decoding(folder):
    assert list(opened("a.txt").readlines()) == [("./a.txt", line) for line in (b"l1", b"l2", b"", b"l3")]
    assert list(opened("a.txt").readlines(decode=True, skip_lines=1, return_path=False)) == ["l2", "", "l3"]
    assert next(iter(opened("a.txt", "r").readlines(strip_newline=False, return_path=False))) == "l1\n"
    assert list(FileLister("sub").open_files("b").readlines(return_path=False)) == [b"zz"]


def test_paragraphs_end_at_empty_lines_and_with_their_file():
    lines = IterableWrapper([("f", "a"), ("f", "b"), ("f", ""), ("f", ""), ("f", "c"), ("g", "d"), ("h", "")])
    assert list(lines.lines_to_paragraphs()) == [("f", "a\nb"), ("f", "c"), ("g", "d")]
    assert next(iter(lines.lines_to_paragraphs("|".join))) == ("f", "a|b")


def test_contents_come_whole_or_in_pieces(folder):
    assert list(opened("c.json").read_from_stream()) == [("./c.json", b'{"x": [1]}')]
    assert b"".join(piece for _, piece in opened("a.txt").read_from_stream(4)) == FILES["a.txt"].encode()


def test_csv_and_json_are_parsed(folder):
    assert list(opened("b.csv").parse_csv()) == [["k", "v"], ["1", "2"], ["3", "4\n5"]]
    rows = opened("b.csv", "r").parse_csv(skip_lines=1, as_tuple=True, return_path=True, delimiter=",")
    assert next(iter(rows)) == ("./b.csv", ("1", "2"))
    assert list(opened("b.csv").parse_csv_as_dict()) == [{"k": "1", "v": "2"}, {"k": "3", "v": "4\n5"}]
    assert list(opened("c.json").parse_json_files()) == [("./c.json", {"x": [1]})]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_of_archives_come_in_order_and_can_be_read_later(folder, kind):
    pipe = opened("t.tar").load_from_tar() if kind == "tar" else opened("z.zip").load_from_zip()
    expected = [(f"{'t.tar' if kind == 'tar' else 'z.zip'}/{name}", data) for name, data in MEMBERS.items()]
    assert contents(pipe) == expected
    assert contents(list(pipe)) == expected


@pytest.mark.parametrize("name", ["t.tar.gz", "t.tar.bz2", "t.tar", "z.zip"])
def test_the_archives_that_decompress_opens_are_loaded_and_stay_open_while_a_member_is_used(folder, name):
    if name.endswith(("gz", "bz2")):
        write_tar(name, MEMBERS, f"w:{name.split('.')[-1]}")
    files = opened(name).decompress()
    parts = list(files.load_from_zip() if name == "z.zip" else files.load_from_tar())
    assert [(path, stream.read()) for path, stream in parts] == [
        (f"{name}/{member}", data) for member, data in MEMBERS.items()
    ]


def test_a_tar_that_cannot_seek_is_streamed(folder):
    write_tar("big.tgz", {"1": b"one", "2": b"two" * 100_000}, "w:gz")
    one, two = socket.socketpair()
    with one, two, two.makefile("rb") as stream:
        one.setblocking(False)
        with open("big.tgz", "rb") as file:
            data = file.read()
        assert one.send(data) == len(data)
        one.shutdown(socket.SHUT_WR)
        pipe = IterableWrapper([("big.tgz", StreamWrapper(stream))], deepcopy=False).load_from_tar()
        assert contents(pipe) == [("big.tgz/1", b"one"), ("big.tgz/2", b"two" * 100_000)]


def test_names_that_point_out_of_an_archive_are_names_only(folder):
    write_tar("evil.tar", {"../../etc/passwd": b"x", "/etc/passwd": b"y", "ok/./name": b"z"})
    names = [path for path, _ in opened("evil.tar").load_from_tar()]
    assert names == ["./evil.tar/../../etc/passwd", "./evil.tar//etc/passwd", "evil.tar/ok/name"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_of_an_archive_may_be_read_in_threads(folder, kind):
    members = {f"{number}.bin": bytes([number % 251]) * 20_000 for number in range(200)}
    write_tar("many.tar", members)
    with zipfile.ZipFile("many.zip", "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    pipe = opened("many.tar").load_from_tar() if kind == "tar" else opened("many.zip").load_from_zip()
    read_by_threads = pipe.prefetch(20).threadpool_map(lambda pair: pair[1].read(), max_workers=4)
    assert list(iter(read_by_threads)) == list(members.values())


def test_links_in_a_tar_are_left_out(folder):
    with tarfile.open("links.tar", "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert list(opened("links.tar").load_from_tar()) == []


@pytest.mark.parametrize("load", ["load_from_tar", "load_from_zip"])
def test_a_damaged_archive_is_named(folder, load):
    with pytest.raises(SourceError, match=r"corrupted(.|\n)*a\.txt"):
        list(getattr(opened("a.txt"), load)())


@pytest.mark.parametrize(("item", "message"), [(5, "tuple"), (("a", 5), "binary stream"), ((5, 6), "string type")])
def test_archives_want_a_path_and_a_file(item, message):
    with pytest.raises(TypeError, match=message):
        list(IterableWrapper([item]).load_from_tar())


def test_compressed_files_are_told_by_their_suffix_or_the_user(folder):
    for name, data in (("x.gz", gzip.compress(b"g")), ("x.xz", lzma.compress(b"x")), ("x.bz2", bz2.compress(b"b"))):
        (folder / name).write_bytes(data)
    assert contents(opened(["*.gz", "*.xz", "*.bz2"]).decompress()) == [
        ("./x.bz2", b"b"),
        ("./x.gz", b"g"),
        ("./x.xz", b"x"),
    ]
    assert contents(opened("x.gz").decompress("gzip")) == contents(opened("x.gz").extract("GZIP")) == [("./x.gz", b"g")]
    assert contents(opened("x.xz").load_from_xz()) == [("./x", b"x")]
    assert contents(opened("x.bz2").load_from_bz2()) == [("./x", b"b")]
    with pytest.raises(RuntimeError, match=r"file extension \.txt"):
        list(opened("a.txt").decompress())
    with pytest.raises(ConfigError, match="CompressionType"):
        opened("x.gz").decompress("foo")


def test_webdataset_joins_files_of_one_stem(folder):
    samples = opened("t.tar").load_from_tar().webdataset()
    assert [
        {key: value if key == "__key__" else value.read() for key, value in sample.items()} for sample in samples
    ] == [
        {"__key__": "t.tar/1", ".cls": b"0", ".jpg": b"AAA"},
        {"__key__": "t.tar/2", ".cls": b"1", ".jpg": b"BBB"},
        {"__key__": "t.tar/d/3", ".seg.png": b"C"},
    ]


def test_webdataset_splits_names_at_the_first_dot_of_the_last_part():
    names = ["a/b.x", "a/b.y", "c/b.x", "none", "a.b/k.z.w", "/.hid"]
    samples = list(IterableWrapper([(name, place) for place, name in enumerate(names)]).webdataset())
    assert [sample["__key__"] for sample in samples] == ["a/b", "c/b", "a.b/k", "/"]
    assert samples[0] == {"__key__": "a/b", ".x": 0, ".y": 1}


def test_webdataset_loses_no_file_of_a_double_name():
    with pytest.raises(SourceError, match="same name"):
        list(IterableWrapper([("q.x", 1), ("q.x", 2)]).webdataset())


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a-{0..3}", ["a-0", "a-1", "a-2", "a-3"]),
        ("a-{08..10}", ["a-08", "a-09", "a-10"]),
        ("{0..1}-{8..9}", ["0-8", "0-9", "1-8", "1-9"]),
        ("{0..0}", ["0"]),
        ("{9..10}", ["9", "10"]),
        ("a{1}{a..b}", ["a{1}{a..b}"]),
    ],
)
def test_shards_are_expanded(pattern, expected):
    assert list(IterableWrapper([pattern]).shard_expand()) == expected


@pytest.mark.parametrize("pattern", ["{3..1}", "{00..3}"])
def test_bad_ranges_of_shards_are_refused(pattern):
    with pytest.raises(ValueError, match="shard_expand"):
        list(IterableWrapper([pattern]).shard_expand())


def test_hashes_are_checked_and_files_rewound(folder):
    good = hashlib.sha256(FILES["a.txt"].encode()).hexdigest().upper()
    assert contents(opened("a.txt").check_hash({"./a.txt": good}))[0][1] == FILES["a.txt"].encode()
    assert contents(opened("a.txt").check_hash({"./a.txt": good}, rewind=False))[0][1] == b""
    md5 = hashlib.md5(b"x", usedforsecurity=False).hexdigest()
    assert list(IterableWrapper([("a", "x"), ("b", b"x")]).check_hash({"a": md5, "b": md5}, "md5"))
    for hashes, message in (({"./a.txt": "00"}, "does not match"), ({}, "Unspecified hash")):
        with pytest.raises(RuntimeError, match=message):
            list(opened("a.txt").check_hash(hashes))
    with pytest.raises(ConfigError, match="hash_type"):
        opened("a.txt").check_hash({}, "foo")


def test_items_are_saved_whole_in_folders_that_are_made(folder):
    items = IterableWrapper([("a", b"x"), ("b", "text"), ("c", StreamWrapper(io.BytesIO(b"z")))], deepcopy=False)
    paths = list(items.save_to_disk("wb", lambda name: f"out/{name}"))
    assert paths == ["out/a", "out/b", "out/c"]
    assert [Path(path).read_text() for path in paths] == ["x", "text", "z"]
    assert sorted(os.listdir("out")) == ["a", "b", "c"]


def test_a_file_that_fails_to_be_written_leaves_nothing(folder):
    class Truncated(io.BytesIO):
        def read(self, *_):
            raise OSError("truncated")

    with pytest.raises(OSError, match="truncated"):
        list(IterableWrapper([("new/file", Truncated())], deepcopy=False).save_to_disk("wb"))
    assert os.listdir("new") == []
    with pytest.raises(ConfigError, match="mode"):
        IterableWrapper([]).save_to_disk("a")


def test_files_of_any_file_system_are_listed_opened_and_saved(folder):
    saved = IterableWrapper([("memory://there/x.txt", b"1"), ("memory://there/y.bin", b"2")]).save_by_fsspec("wb")
    assert list(saved) == ["memory://there/x.txt", "memory://there/y.bin"]
    listed = FSSpecFileLister("memory://there", "*.txt")
    assert contents(listed.open_files_by_fsspec("rb")) == [("memory:///there/x.txt", b"1")]
    assert list(FSSpecFileLister("sub")) == [str(folder / "sub" / "z.txt")]
    assert list(IterableWrapper([f"file://{folder}"]).list_files_by_fsspec(["*.csv"])) == [f"file://{folder}/b.csv"]


STATEFUL = {
    "list": lambda: FileLister([".", "sub"], recursive=True),
    "lines": lambda: FileLister(".", "*.txt", recursive=True).open_files().readlines(),
    "csv": lambda: opened("b.csv").parse_csv_as_dict(),
    "paragraphs": lambda: opened("*.txt", "r").readlines().lines_to_paragraphs(),
    "tar": lambda: opened("t.tar").load_from_tar().map(bytes_of),
    "zip": lambda: opened("z.zip").load_from_zip().map(bytes_of),
    "webdataset": lambda: opened("t.tar").load_from_tar().webdataset().map(sample_of),
    "webdataset of bytes": lambda: opened("t.tar").load_from_tar().map(bytes_of).webdataset(),
    "pieces": lambda: opened("a.txt").read_from_stream(3),
    "fsspec": lambda: FSSpecFileLister(".", "*.txt").open_files_by_fsspec("rb").readlines(return_path=False),
    "shards": lambda: IterableWrapper(["a{0..3}", "b"]).shard_expand(),
    "prefetched tar": lambda: opened("t.tar").load_from_tar().map(bytes_of).prefetch(2),
}


def bytes_of(pair):
    return pair[0], pair[1].read()


def sample_of(sample):
    return {key: value.read() if hasattr(value, "read") else value for key, value in sample.items()}


@pytest.mark.parametrize("name", sorted(STATEFUL))
def test_reading_files_goes_on_where_its_state_was_taken(folder, name):
    expected = list(STATEFUL[name]())
    assert len(expected) >= 2
    for num_before in range(1, len(expected) + 1):
        pipe = STATEFUL[name]()
        iterator = iter(pipe)
        before = [next(iterator) for _ in range(num_before)]
        fresh = STATEFUL[name]()
        restore_graph(fresh, graph_state(pipe))
        assert before + list(fresh) == expected
        assert before + list(iterator) == expected


def test_files_that_somebody_else_opened_have_no_state(folder):
    pipe = IterableWrapper([("a", StreamWrapper(io.BytesIO(b"1\n2\n")))], deepcopy=False).readlines()
    iterator = iter(pipe)
    next(iterator)
    assert graph_state(pipe) is None

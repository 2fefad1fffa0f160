from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, SourceError
from headrace.files.lists.file_list import read_file_list
from servers import FileServer, S3Server, has_s3

NAMES = (
    st.text(
        st.characters(exclude_categories=["Cc", "Cs", "Z"], exclude_characters="*?[:\ufeff"), min_size=1, max_size=8
    )
    .filter(lambda name: not name.startswith(("#", "/", ".")))
    .map(lambda name: f"/data/{name}")
)
TREES = st.recursive(
    NAMES, lambda t: st.lists(t, min_size=1, max_size=3) | st.dictionaries(st.text(), t, min_size=1), max_leaves=6
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with some files in it."""
    for name in ("b.hdf", "a.hdf", "B.hdf", ".hidden.hdf", "odd[1].hdf", "sub/y.hdf", "sub/x.hdf", "sub/deep/z.hdf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "folder.hdf").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- lists of Python ---


def test_a_list_comes_back_entry_by_entry_as_it_is() -> None:
    path = Path("c.hdf")
    files = ["b.hdf", "../a.hdf", path, ("x", {"k": ["y", path]}), "s3://bucket/key", "b.hdf"]
    read = read_file_list(files)
    assert read == files
    assert read is not files
    assert read[2] is path


def test_an_error_of_the_function_keeps_its_type_and_says_whose_it_is() -> None:
    def fail() -> list[Any]:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        read_file_list(fail)
    assert caught.value.__notes__ == ["raised by the function given as files"]


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (("a", "b"), "unsupported file list: files is of type tuple"),
        (3, "unsupported file list"),
        ([], "the file list is empty"),
        (lambda: ("a", "b"), "returned a tuple, not a list"),
        (["a", ()], r"(?s)names no file.*files\[1\]"),
        (["a", None], r"(?s)None is not a file name.*files\[1\]"),
        (lambda: ["a", ("b", 3)], r"(?s)3 is not a file name.*files\(\)\[1\]"),
        (["a", ""], r"(?s)a file name is empty.*files\[1\]"),
        ("a.hdf", r"(?s)neither a list file nor a pattern.*write files=\['a.hdf'\]"),
        ("", "neither a list file nor a pattern"),
        ("s3://bucket/a.hdf", "neither a list file nor a pattern"),
    ],
)
def test_what_is_no_file_list_is_refused(files: Any, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        read_file_list(files)


# --- patterns ---


def test_a_pattern_stands_for_the_files_it_matches_in_the_order_of_their_characters(folder: Path) -> None:
    assert read_file_list("*.hdf") == ["B.hdf", "a.hdf", "b.hdf", "odd[1].hdf"]
    assert read_file_list(Path("sub/*.hdf")) == ["sub/x.hdf", "sub/y.hdf"]
    assert read_file_list(str(folder / "[ab].hdf")) == [str(folder / "a.hdf"), str(folder / "b.hdf")]
    assert read_file_list("sub/**") == ["sub/deep/z.hdf", "sub/x.hdf", "sub/y.hdf"]
    assert read_file_list(f"file://{folder}/sub/?.hdf") == [str(folder / "sub/x.hdf"), str(folder / "sub/y.hdf")]


def test_patterns_are_entries_among_others_but_not_inside_trees(folder: Path) -> None:
    files = ["sub/*.hdf", "b.hdf", ("*.hdf", "c"), "sub/[x].hdf"]
    assert read_file_list(files) == ["sub/x.hdf", "sub/y.hdf", "b.hdf", ("*.hdf", "c"), "sub/x.hdf"]


def test_a_file_whose_name_looks_like_a_pattern_is_itself(folder: Path) -> None:
    assert read_file_list(["odd[1].hdf"]) == ["odd[1].hdf"]
    (folder / "list[1].txt").write_text("a.hdf\n")
    assert read_file_list("list[1].txt") == ["a.hdf"]


@pytest.mark.parametrize("files", ["*.wav", ["a.hdf", "no/*"], "folder.h*", "memory://nothing/*.hdf"])
def test_a_pattern_that_matches_no_file_is_refused(folder: Path, files: Any) -> None:
    with pytest.raises(SourceError, match="no file matches the pattern"):
        read_file_list(files)


def test_links_to_files_match_and_links_to_folders_do_not(folder: Path) -> None:
    (folder / "sub/link.hdf").symlink_to(folder / "a.hdf")
    (folder / "sub/linked.hdf").symlink_to(folder / "folder.hdf")
    assert read_file_list("sub/*.hdf") == ["sub/link.hdf", "sub/x.hdf", "sub/y.hdf"]


# --- list files ---


def _text_of(trees: list[Any], kind: str) -> str:
    return json.dumps(trees) if kind == ".json" else f"# a list\n{trees!r}\n" if kind == ".py" else "\n".join(trees)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", [".json", ".py"])
@given(trees=st.lists(TREES, min_size=1, max_size=5))
def test_trees_come_back_from_a_list_file(
    tmp_path_factory: pytest.TempPathFactory, kind: str, packed: bool, trees: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("lists") / (f"l{kind}.gz" if packed else f"l{kind}")
    data = _text_of(trees, kind).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    assert read_file_list(path) == trees


def test_relative_names_are_relative_to_the_working_directory(folder: Path) -> None:
    (folder / "sub/l.txt").write_text("a.hdf\n../b.hdf\nsub/*.hdf\n/abs/c.hdf\ns3://bucket/d.hdf\nodd[1].hdf\n")
    (folder / "sub/l.json").write_text('[["a.hdf", {"k": "./b.hdf"}]]')
    expected = ["a.hdf", "../b.hdf", "sub/x.hdf", "sub/y.hdf", "/abs/c.hdf", "s3://bucket/d.hdf", "odd[1].hdf"]
    assert read_file_list("sub/l.txt") == expected
    assert read_file_list(f"file://{folder}/sub/l.txt") == expected
    assert read_file_list("sub/l.json") == [["a.hdf", {"k": "./b.hdf"}]]


@pytest.mark.parametrize(
    ("name", "data", "what"),
    [
        ("l.txt", b"", "the file list is empty"),
        ("l.txt", b"# only\n\n \n", "the file list is empty"),
        ("l.txt", b"a.hdf\n" + bytes(20), "(?s)null character.*l.txt, line 2"),
        ("l.txt", b"a.hdf\nb\xff\n", "(?s)not UTF-8.*line 2"),
        ("l.txt.gz", gzip.compress(b"a.hdf\n", mtime=0)[:-3], "gzip data are truncated"),
        ("l.json", b'["a.hdf", "b', "not a JSON list: Unterminated string"),
        ("l.json", b'["a"] ["b"]', "not a JSON list: Extra data"),
        ("l.json", b'{"a": "b"}', "holds a dict, not a list"),
        ("l.json", b'["a", null]', "(?s)None is not a file name.*l.json, entry 2"),
        ("l.json", b"[" * 100_000, "not a JSON list"),
        ("l.json", b"[" * 50 + b'"a"' + b"]" * 50, "nested more than 32 deep"),
        ("l.py", b"files = ['a']", "(?s)not a list of plain data.*no assignment"),
        ("l.py", b"['a', open('b')]", "not a list of plain data"),
        ("l.py", b"['a', 'b", "not a list of plain data"),
        ("l.py", b"('a', 'b')", "holds a tuple, not a list"),
        ("l.py", b"['a', {'b'}]", "(?s)is not a file name, but of type set.*entry 2"),
        ("l.py", b"(" * 100_000, "not a list of plain data"),
    ],
)
def test_a_list_file_that_is_torn_or_something_else_is_refused(
    tmp_path: Path, name: str, data: bytes, what: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(SourceError, match=what) as caught:
        read_file_list(tmp_path / name)
    assert name in str(caught.value.where)


def test_a_missing_list_and_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    with pytest.raises(SourceError, match="does not exist"):
        read_file_list(tmp_path / "no.txt")
    with pytest.raises(SourceError, match="not a regular file"):
        read_file_list(tmp_path / "folder.txt")


# --- stores ---


@pytest.fixture
def store() -> Iterator[str]:
    """Return the URL of a folder in memory that holds some files."""
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("b.hdf", "a.hdf", "sub/c.hdf"):
        memory.pipe_file(f"/corpus/{name}", name.encode())
    yield "memory:///corpus"
    memory.rm("/corpus", recursive=True)


def test_patterns_in_a_store_are_expanded(store: str) -> None:
    assert read_file_list(f"{store}/*.hdf") == [f"{store}/a.hdf", f"{store}/b.hdf"]
    assert read_file_list([f"{store}/**", "x"]) == [*(f"{store}/{n}" for n in ("a.hdf", "b.hdf", "sub/c.hdf")), "x"]
    with pytest.raises(SourceError, match="no file matches"):
        read_file_list(f"{store}/*.wav")


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ("nothing://a/*.hdf", "this URL cannot be used: Protocol not known"),
        ("simplecache::memory://a/*.hdf", "chained"),
        (["nothing://a/b*"], "this URL cannot be used"),
    ],
)
def test_a_pattern_that_no_store_can_expand_is_refused(files: Any, what: str) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ConfigError, match=what):
        read_file_list(files)


@pytest.fixture
def server() -> Iterator[FileServer]:
    pytest.importorskip("aiohttp")
    with FileServer() as server:
        yield server


@pytest.mark.extra
def test_a_list_from_a_web_server_names_files_beside_it_and_elsewhere(server: FileServer) -> None:
    url = f"{server.address}/sub"
    server.files["sub/l.txt"] = b"x.hdf\ns3://bucket/d.hdf\n./deep/z.hdf\n"
    server.files["sub/l.json.gz"] = gzip.compress(b'[["x.hdf", "y.hdf"]]')
    assert read_file_list(f"{url}/l.txt") == [f"{url}/x.hdf", "s3://bucket/d.hdf", f"{url}/deep/z.hdf"]
    assert read_file_list(f"{url}/l.txt?key=1#part")[0] == f"{url}/x.hdf"
    assert read_file_list(f"{url}/l.json.gz") == [[f"{url}/x.hdf", f"{url}/y.hdf"]]
    with pytest.raises(SourceError, match="does not exist"):
        read_file_list(f"{url}/no.txt")


@pytest.mark.extra
@pytest.mark.parametrize(
    "name",
    ["/etc/hostname", "file:///etc/hostname", "LOCAL:///etc/hostname", "zip://a::/etc/b", "zip://a::file:///etc/b"],
)
def test_a_list_from_a_web_server_may_not_name_files_of_this_machine(server: FileServer, name: str) -> None:
    server.files["l.txt"] = f"a.hdf\n{name}\n".encode()
    with pytest.raises(SourceError, match=r"(?s)names a file of this machine.*l\.txt, line 2"):
        read_file_list(server.url("l.txt"))


@pytest.mark.extra
def test_a_list_from_a_web_server_may_not_leave_its_folder(server: FileServer) -> None:
    server.files["sub/l.txt"] = b"../a.hdf\n"
    with pytest.raises(SourceError, match="leads out of the folder"):
        read_file_list(server.url("sub/l.txt"))


@pytest.mark.extra
def test_what_is_secret_in_a_url_is_in_no_error(server: FileServer) -> None:
    server.files["l.txt"] = b"\0"
    with pytest.raises(SourceError, match="null character") as caught:
        read_file_list(server.url("l.txt?signature=secret"))
    assert "secret" not in str(caught.value)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    if not has_s3():
        pytest.skip("needs moto[server] and s3fs")
    with S3Server() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Return a store whose bucket `corpus` holds three files."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    s3_server.faults.clear()
    for name in ("b.hdf", "a.hdf", "sub/c.hdf"):
        s3_server.put("corpus", f"set/{name}", b"1")
    return s3_server


@pytest.mark.extra
def test_patterns_and_lists_in_s3(bucket: S3Server) -> None:
    assert read_file_list("s3://corpus/set/*.hdf") == ["s3://corpus/set/a.hdf", "s3://corpus/set/b.hdf"]
    bucket.put("corpus", "set/0.hdf", b"1")  # after a first listing
    assert read_file_list("s3://corpus/set/*.hdf")[0] == "s3://corpus/set/0.hdf"
    bucket.put("corpus", "set/l.txt", b"a.hdf\n**/c.hdf\n")
    assert read_file_list("s3://corpus/set/l.txt") == ["s3://corpus/set/a.hdf", "s3://corpus/set/sub/c.hdf"]
    with pytest.raises(SourceError, match="no file matches"):
        read_file_list("s3://corpus/set/*.wav")


@pytest.mark.extra
def test_a_store_that_refuses_to_list_says_so(bucket: S3Server) -> None:
    bucket.faults.add("status", status=403, times=-1)
    with pytest.raises(SourceError, match="could not list it"):
        read_file_list("s3://corpus/set/*.hdf")

"""What names data files on a command line: paths, patterns, folders and URLs, alike in every command."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.files.cache.local_copies import release_copies
from headrace.sources import HDFSource, TokenSource
from servers import FileServer

Invoke = Callable[..., Any]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"cache_directory": str(tmp_path / "copies")}))
    yield
    release_copies()


@pytest.fixture
def folder(tmp_path: Path, invoke: Invoke, write_corpus: Callable[..., Path]) -> Path:
    """Two corpora of ten sequences, as HDF5 and as tar, each format in a folder of its own."""
    for number in range(2):
        (tmp_path / "hdf").mkdir(exist_ok=True)
        (tmp_path / "tar").mkdir(exist_ok=True)
        path = write_corpus(tmp_path / "hdf" / f"p{number}.hdf", prefix=f"p{number}")
        assert invoke("convert", path, tmp_path / "tar" / f"p{number}.tar").exit_code == 0
    return tmp_path


def run(invoke: Invoke, command: str, *files: object, out: Path) -> int:
    """Run a command over data files; return the number of sequences that it speaks of."""
    if command == "convert":
        result = invoke("convert", *files, out, "--overwrite")
        assert result.exit_code == 0, result.output
        source = HDFSource(out, index=None)
        source.close()
        return len(source)
    result = invoke(command, *files, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    if command == "index":
        return int(found["num_seqs"])
    assert len(found["corpora"]) == 1
    return int(found["corpora"][0]["num_seqs"])


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["hdf", "tar"])
@pytest.mark.parametrize("command", ["inspect", "index", "convert"])
def test_patterns_braces_folders_and_urls_are_understood_by_every_command(
    invoke: Invoke, folder: Path, command: str, kind: str
) -> None:
    pytest.importorskip("aiohttp")
    files, out = folder / kind, folder / "out.hdf"
    for given in ([files], [files / "*"], [files / f"p{{0..1}}.{kind}"], [files / f"p{n}.{kind}" for n in (0, 1)]):
        assert run(invoke, command, *given, out=out) == 20
    assert run(invoke, command, files / f"p1.{kind}", out=out) == 10
    with FileServer({path.name: path.read_bytes() for path in files.iterdir()}) as server:
        assert run(invoke, command, server.url(f"p0.{kind}"), out=out) == 10
        assert run(invoke, command, server.url(f"p{{0..1}}.{kind}"), out=out) == 20
        result = invoke(command, server.url(f"none.{kind}"), *([out] if command == "convert" else []))
    assert result.exit_code == 1
    assert f"none.{kind}" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "index", "convert"])
def test_what_is_not_there_is_named_with_what_is_near(invoke: Invoke, folder: Path, command: str) -> None:
    out = [folder / "out.hdf"] if command == "convert" else []
    for given, said in (
        (folder / "hdf" / "q*.hdf", ("no file matches the pattern", "q*.hdf", "has p0.hdf, p1.hdf")),
        (folder / "hdf" / "q0.hdf", ("no such file", "q0.hdf")),
        (folder / "hdf" / "p{0..2}.hdf", ("hdf/p2.hdf", "check the path")),
        ("nowhere://bucket/a.hdf", ("nowhere",)),
    ):
        result = invoke(command, given, *out)
        assert result.exit_code in (1, 2)
        assert all(text in result.stderr for text in said), result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.extra
def test_files_are_shown_as_they_were_named(invoke: Invoke, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.chdir(folder)

    def shown(*files: object) -> list[str]:
        (corpus,) = json.loads(invoke("inspect", *files, "--json").stdout)["corpora"]
        return [file["path"] for file in corpus["files"]]

    assert shown("hdf/p1.hdf", "hdf/p*.hdf") == ["hdf/p1.hdf", "hdf/p0.hdf", "hdf/p1.hdf"]
    assert shown("hdf") == ["hdf"]
    assert shown(folder / "hdf" / "p0.hdf") == [str(folder / "hdf" / "p0.hdf")]
    with FileServer({"p0.hdf": (folder / "hdf" / "p0.hdf").read_bytes()}) as server:
        assert shown(server.url("p0.hdf")) == [server.url("p0.hdf")]
    source = HDFSource("hdf", index=None)
    source.index.save("all.hrindex")
    source.close()
    assert shown("*.hrindex") == ["all.hrindex"]


def test_what_belongs_to_another_file_is_not_read_twice(invoke: Invoke, folder: Path) -> None:
    (folder / "tokens").mkdir()
    tokens = folder / "tokens" / "t.bin"
    assert invoke("convert", folder / "hdf", tokens, "--key", "classes").exit_code == 0
    assert (folder / "tokens" / "t.idx").exists()
    for given in ([tokens.parent], [tokens.parent / "*"], [tokens, tokens.with_suffix(".idx")]):
        assert run(invoke, "inspect", *given, out=tokens) == run(invoke, "index", *given, out=tokens) == 20
    assert invoke("convert", tokens.parent, folder / "u.bin").exit_code == 0
    source = TokenSource(folder / "u.bin", by="document", index=None)
    source.close()
    assert len(source) == 20


def test_nothing_is_written_to_a_url(invoke: Invoke, folder: Path) -> None:
    result = invoke("convert", folder / "hdf", "s3://bucket/out.tar")
    assert result.exit_code == 2
    assert "files are written on this machine" in result.stderr
    assert "s3://bucket/out.tar" in result.stderr

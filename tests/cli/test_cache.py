"""`headrace cache`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.cli.cache import _shown
from headrace.files.cache.cache import FileCache
from headrace.files.cache.entry import EntryRecord
from headrace.files.fetch import SourceStat

_DAY = 24 * 3600.0


@pytest.fixture
def call(tmp_path: Path) -> Callable[..., Any]:
    def invoke(command: str, *arguments: object, exit_code: int = 0) -> Any:
        where = ["--cache-directory", str(tmp_path / "files")]
        result = CliRunner().invoke(app, ["cache", command, *map(str, arguments), *where], prog_name="headrace")
        assert result.exit_code == exit_code, result.output
        if "--json" in arguments:
            return json.loads(result.stdout)
        return result.stdout + result.stderr

    return invoke


@pytest.fixture
def files(tmp_path: Path) -> Iterator[FileCache]:
    """A cache with copies of a, b and c of 1000 bytes, last used 40, 20 and 0 days ago."""
    with FileCache(cache_directory=tmp_path / "files") as cache:
        for name, days in zip("abc", (40, 20, 0), strict=True):
            (tmp_path / name).write_bytes(name.encode() * 1000)
            before = set(os.listdir(tmp_path / "files" / "entries"))
            cache.release_files(cache.get_file(tmp_path / name))
            (entry,) = set(os.listdir(tmp_path / "files" / "entries")) - before
            os.utime(tmp_path / "files" / "entries" / entry, (time.time() - days * _DAY,) * 2)
        yield cache


def _names(tmp_path: Path) -> str:
    return "".join(sorted(path.name for path in (tmp_path / "files" / "data").glob("*/*")))


def _leave_a_part(tmp_path: Path) -> None:
    (path,) = (path for path in (tmp_path / "files" / "data").glob("*/a"))
    (tmp_path / "files" / "entries" / f"{path.parent.name}.json").write_bytes(b"")


def test_ls_shows_size_age_source_and_who_uses_each_copy(call, files, tmp_path):
    files.get_file(tmp_path / "b")
    _leave_a_part(tmp_path)
    text = call("ls")
    assert f"{tmp_path}/files 3.0 kB; the disk has " in text
    lines = text.splitlines()
    assert [line.split()[:2] for line in lines if line.endswith(f" ago  {tmp_path / 'c'}")] == [["1.0", "kB"]]
    assert any(line.endswith(f"{tmp_path / 'b'}  (in use by this process ({os.getpid()}))") for line in lines)
    assert "(no whole copy)  (left by a process that is gone)" in text
    report = call("ls", "--json")
    assert report["bytes"] == 3000
    by_source = {entry["source"]: entry for entry in report["entries"]}
    assert set(by_source) == {None, str(tmp_path / "b"), str(tmp_path / "c")}
    assert Path(by_source[str(tmp_path / "c")]["path"]).read_bytes() == b"c" * 1000
    assert by_source[str(tmp_path / "b")]["used_by"] == f"this process ({os.getpid()})"
    assert not by_source[None]["is_whole"]


@pytest.mark.parametrize("is_there", [False, True])
def test_without_a_cache_there_is_nothing_and_none_is_made(call, tmp_path, is_there):
    if is_there:
        (tmp_path / "files").mkdir()
    for command in ("ls", "clean"):
        assert "there is no file cache here yet" in call(command)
        assert call(command, "--json")["exists"] is False
    assert (os.listdir(tmp_path / "files") == []) if is_there else not (tmp_path / "files").exists()


def test_clean_removes_what_is_old_and_tells_it(call, files, tmp_path):
    report = call("clean", "--json", "--dry-run")
    assert (report["num_removed"], report["bytes_removed"], report["removed"]) == (1, 1000, [str(tmp_path / "a")])
    assert _names(tmp_path) == "abc"
    text = call("clean")
    assert "1 files removed, 1.0 kB" in text
    assert str(tmp_path / "a") in text
    assert _names(tmp_path) == "bc"
    assert call("clean", "--json", "--older-than", "10")["removed"] == [str(tmp_path / "b")]
    assert call("clean", "--json")["num_removed"] == 0


def test_clean_all_leaves_what_is_in_use(call, files, tmp_path):
    files.get_file(tmp_path / "b")
    text = call("clean", "--all")
    assert "1 files stay, 1.0 kB: they are in use" in text
    assert _names(tmp_path) == "b"
    files.close()
    call("clean", "--all")
    assert _names(tmp_path) == ""
    assert os.listdir(tmp_path / "files" / "entries") == []


def test_clean_to_a_size_removes_what_is_needed_last_and_says_if_it_cannot(call, files, tmp_path):
    files.set_plan([tmp_path / "a"])
    call("clean", "--max-bytes", "2 kB")
    assert _names(tmp_path) == "ac", "a is planned, so its age does not count"
    files.get_file(tmp_path / "c")
    text = call("clean", "--max-bytes", "500", exit_code=1)
    assert "the copies take 1.0 kB, and at most 500 B was asked for" in text
    assert _names(tmp_path) == "c"
    text = call("clean", "--free", "100000 TB", exit_code=1)
    assert "free, and 100000.0 TB was asked for: nothing more can be removed" in text
    assert _names(tmp_path) == "c"
    assert "--max-bytes" in call("clean", "--max-bytes", "many", exit_code=2)


def test_the_environment_names_the_folder(call, files, tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"cache_directory": str(tmp_path / "files")}))
    result = CliRunner().invoke(app, ["cache", "ls", "--json"], prog_name="headrace")
    assert len(json.loads(result.stdout)["entries"]) == 3


def test_a_name_that_is_no_text_and_a_url_with_a_password_are_shown_safely(call, tmp_path):
    odd = tmp_path / os.fsdecode(b"\xff[bold]")
    odd.write_bytes(b"x")
    with FileCache(cache_directory=tmp_path / "files") as cache:
        cache.get_file(odd)
    assert r"\udcff[bold]" in call("ls")
    assert len(call("ls", "--json")["entries"]) == 1
    stat = SourceStat(1, "1")
    record = EntryRecord.of("https://ann:secret@host/a.hdf?key=x", stat, mtime_ns=0)
    assert _shown(None, record) == "https://host/a.hdf?..."

"""The quarantine file: a regular file, or an error that says what is there instead, at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.engine import Engine, EngineOptions, Job, Skipping
from headrace.engine.quarantine import Quarantine
from headrace.engine.user.failure import Failure
from headrace.errors import CacheError, ConfigError, HeadraceError

WHATEVER = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a symbolic link": lambda path: path.symlink_to(path.with_name("target")),
    "a socket": lambda path: os.mknod(path, 0o140600),
}
FAILURE = Failure("ValueError", "too long", "")


@pytest.mark.parametrize("kind", WHATEVER)
def test_what_is_no_file_is_refused_when_it_is_named(tmp_path, kind):
    WHATEVER[kind](tmp_path / "bad")
    with pytest.raises(ConfigError, match=f"the quarantine file is {kind}"):
        Skipping(quarantine=tmp_path / "bad")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x/" * 5000])
def test_what_is_no_path_is_refused_when_it_is_named(tmp_path, name):
    with pytest.raises(ConfigError, match="quarantine file"):
        Skipping(quarantine=tmp_path / name)


@pytest.mark.parametrize("kind", WHATEVER)
def test_what_became_something_else_is_refused_when_it_is_written_to(tmp_path, kind):
    quarantine = Quarantine(tmp_path / "bad")
    quarantine.append(0, FAILURE)
    (tmp_path / "bad").unlink()
    WHATEVER[kind](tmp_path / "bad")
    with pytest.raises(CacheError, match="cannot be written to the quarantine file"):
        quarantine.append(1, FAILURE)
    assert not (tmp_path / "target").exists()


def test_a_pipe_that_is_read_from_is_no_file_either(tmp_path):
    os.mkfifo(tmp_path / "bad")
    reader = os.open(tmp_path / "bad", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(CacheError, match="no regular file"):
        Quarantine(tmp_path / "bad").append(0, FAILURE)
    assert os.read(reader, 9) == b""
    os.close(reader)


def fail(number):
    raise ValueError(str(number))


def test_a_folder_that_goes_away_is_told_with_what_was_left_out(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    options = EngineOptions(on_error=Skipping(quarantine=folder / "bad"))
    folder.rmdir()
    with (
        Engine(Job(lambda info: fail), num_workers=0, options=options) as engine,
        pytest.raises(HeadraceError, match=r"No such file or directory\n.*ValueError: 0"),
    ):
        list(engine.run(range(3)))

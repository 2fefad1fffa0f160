"""Several files that get their names together."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from headrace.errors import ConfigError, SourceError
from headrace.files.atomic import together
from headrace.files.atomic.together import PendingFiles, settle


def write(folder: Path, names: dict[str, str], *, overwrite: bool = False) -> None:
    pending = PendingFiles(folder / "a.bin", [str(folder / "a.idx"), str(folder / "a.txt")], overwrite=overwrite)
    try:
        for name, text in names.items():
            Path(pending.temporary(name)).write_text(text)
        pending.commit()
    finally:
        pending.abort()


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


OLD = {"a.bin": "old", "a.idx": "old", "a.txt": "old"}
NEW = {"a.bin": "new", "a.idx": "new"}


def test_what_is_not_made_anew_goes_with_the_old_ones(tmp_path: Path) -> None:
    write(tmp_path, OLD)
    write(tmp_path, NEW, overwrite=True)
    assert texts(tmp_path) == NEW


@pytest.mark.parametrize("taken", ["a.bin", "a.idx", "a.txt"])
def test_a_name_that_is_taken_meanwhile_stays(tmp_path: Path, taken: str) -> None:
    pending = PendingFiles(tmp_path / "a.bin", [str(tmp_path / "a.idx"), str(tmp_path / "a.txt")], overwrite=False)
    Path(pending.temporary("a.bin")).write_text("new")
    (tmp_path / taken).write_text("precious")
    with pytest.raises(ConfigError, match="the file exists") as caught:
        pending.commit()
    assert caught.value.where == str(tmp_path / taken)
    assert texts(tmp_path) == {taken: "precious"}


@pytest.mark.parametrize("linked", ["a.bin", "a.idx"])
def test_files_behind_links_are_not_replaced_together(tmp_path: Path, linked: str) -> None:
    write(tmp_path, OLD)
    os.rename(tmp_path / linked, tmp_path / "elsewhere")
    (tmp_path / linked).symlink_to("elsewhere")
    with pytest.raises(ConfigError, match=r"symbolic link(.|\n)*elsewhere"):
        write(tmp_path, NEW, overwrite=True)
    assert (tmp_path / linked).is_symlink()


def _interrupted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Leave new files that count, none of them in its place."""
    write(folder, OLD)

    def stop(path: str) -> None:
        if os.path.lexists(together._ready_folder(path)):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(together, "_finish", stop)
        with pytest.raises(KeyboardInterrupt):
            write(folder, NEW, overwrite=True)
    return Path(together._ready_folder(str(folder / "a.bin")))


def test_who_comes_next_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = _interrupted(tmp_path, monkeypatch)
    assert ready.is_dir()
    settle(tmp_path / "a.bin")
    assert texts(tmp_path) == NEW
    settle(tmp_path / "a.bin")


def test_names_that_lead_out_of_the_folder_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "precious").write_text("precious")
    ready = _interrupted(tmp_path / "folder", monkeypatch)
    (ready / ".together.json").write_text(json.dumps(["../precious", str(tmp_path / "precious")]))
    settle(tmp_path / "folder/a.bin")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")
def test_what_somebody_else_left_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready = _interrupted(tmp_path, monkeypatch)
    os.chown(ready, 65534, 65534)
    with pytest.raises(SourceError, match="another user's process was killed"):
        settle(tmp_path / "a.bin")
    assert (tmp_path / "a.bin").read_text() == "old"

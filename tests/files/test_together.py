"""Several files that get their names together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.files.atomic import PendingFiles


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


@pytest.mark.parametrize("step", range(1, 7))
def test_a_writer_that_is_killed_while_it_renames_never_leaves_the_main_file_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    write(tmp_path, OLD)
    calls = 0

    def counted(function):
        def call(*args, **options):
            nonlocal calls
            calls += 1
            if calls == step:
                raise KeyboardInterrupt
            return function(*args, **options)

        return call

    pending = PendingFiles(tmp_path / "a.bin", [str(tmp_path / "a.idx"), str(tmp_path / "a.txt")], overwrite=True)
    for name, text in NEW.items():
        Path(pending.temporary(name)).write_text(text)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", counted(os.unlink))
        patch.setattr(os, "replace", counted(os.replace))
        with pytest.raises(KeyboardInterrupt):
            pending.commit()
    found = texts(tmp_path)
    assert found in (OLD, NEW) or "a.bin" not in found
    write(tmp_path, NEW, overwrite=True)
    assert texts(tmp_path) == NEW

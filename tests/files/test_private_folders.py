"""Folders at places that others can foresee, and what is kept in them."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.errors import CacheError, SourceError
from headrace.files import hold_in_use, kept_folder, kept_path, open_regular, remove_unused
from headrace.index import CorpusIndex

STRANGER = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to somebody else")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=["HEADRACE_CACHE", "XDG_CACHE_HOME", "HOME"])
def cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, which is not there yet, said by one of the variables that say it."""
    for name in ("HEADRACE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(request.param, str(tmp_path / "place"))
    below = {"HEADRACE_CACHE": "", "XDG_CACHE_HOME": "headrace", "HOME": ".cache/headrace"}[request.param]
    return tmp_path / "place" / below


def test_a_folder_that_is_made_is_for_this_user_alone_whatever_the_umask(cache: Path) -> None:
    old = os.umask(0)
    try:
        folder = kept_folder("index")
    finally:
        os.umask(old)
    assert folder == cache / "index" == kept_path("index")
    assert (mode_of(folder), mode_of(cache)) == (0o700, 0o700)


def test_users_that_share_a_named_folder_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    monkeypatch.setenv("HEADRACE_CACHE", str(shared))
    assert kept_folder("index") == shared / f"user-{os.geteuid()}" / "index"
    assert stat.S_IMODE(shared.stat().st_mode) == 0o2770


def _own(path: Path) -> None:
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@needs_root
@pytest.mark.parametrize("planted", ["user", "user/headrace", "user/headrace/file_cache"])
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_somebody_else_made_at_a_place_that_he_foresaw_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str, kind: str
) -> None:
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("USER", "user")
    place = tmp_path / planted
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        place.mkdir(mode=0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    _own(place)
    with pytest.raises(CacheError, match=f"belongs to user {STRANGER}") as caught:
        hr.FileCache().close()
    assert caught.value.where == str(place)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], hr.HDFSource]:
    """Opens a corpus that is large enough for its index to be kept in `cache/index`."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("headrace.files.kept._warned_of", set())
    with hr.HDFWriter(tmp_path / "corpus.hdf") as writer:
        for number in range(2100):
            writer.append(f"{number}", {"data": np.full(1, number, np.float32)})
    return lambda: hr.HDFSource(tmp_path / "corpus.hdf")


def _index_of(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "cache/index").glob("*.hrindex")
    return path


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_in_the_place_of_an_index_is_replaced_and_not_what_is_behind_it(
    corpus: Callable[[], hr.HDFSource], tmp_path: Path, is_there: bool
) -> None:
    corpus()
    path, canary = _index_of(tmp_path), tmp_path / "canary"
    path.unlink()
    if is_there:
        canary.write_text("do not touch")
    path.symlink_to(canary)
    assert len(corpus()) == 2100
    assert not path.is_symlink()
    assert path.is_file()
    assert (canary.read_text() == "do not touch") if is_there else not canary.exists()


def test_a_pipe_in_the_place_of_an_index_is_not_waited_for(corpus: Callable[[], hr.HDFSource], tmp_path: Path) -> None:
    corpus()
    path = _index_of(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert len(corpus()) == 2100
    with pytest.raises(SourceError, match="not a regular file"):
        CorpusIndex.open(path)
    with pytest.raises(SourceError, match="not a regular file"):
        open_regular(path)


@needs_root
def test_a_folder_of_indices_that_belongs_to_somebody_else_is_not_used(
    corpus: Callable[[], hr.HDFSource],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("HEADRACE_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "home/.cache/headrace/index").mkdir(parents=True)
    _own(tmp_path / "home/.cache/headrace/index")
    assert len(corpus()) == 2100
    assert f"belongs to user {STRANGER}" in caplog.text
    assert not list((tmp_path / "home/.cache/headrace/index").iterdir())


def _kept(folder: Path, ages: dict[str, float]) -> list[Path]:
    paths = []
    for name, age in ages.items():
        path = folder / name
        path.write_bytes(bytes(10))
        os.utime(path, (1e9 - age, 0))
        paths.append(path)
    return paths


def test_what_was_used_longest_ago_goes_first_and_what_is_old_in_any_case(tmp_path: Path) -> None:
    day = 24 * 3600.0
    _kept(tmp_path, {"a.x": 100 * day, "b.x": 3 * day, "c.x": 2 * day, "d.x": day, "e.y": 1000 * day})
    _kept(tmp_path, {".in the making.x": 1000 * day})
    remove_unused(tmp_path, "*.x", now=1e9)
    assert sorted(path.name for path in tmp_path.glob("[a-z]*")) == ["b.x", "c.x", "d.x", "e.y"]
    remove_unused(tmp_path, "*.x", max_bytes=25, now=1e9)
    assert sorted(path.name for path in tmp_path.glob("[a-z]*")) == ["c.x", "d.x", "e.y"]
    remove_unused(tmp_path, "*.x", max_files=0, idle_days=1.5, now=1e9)
    assert sorted(path.name for path in tmp_path.glob("[a-z]*")) == ["d.x", "e.y"]
    assert (tmp_path / ".in the making.x").exists()


def test_what_another_holds_stays_until_it_lets_go(tmp_path: Path) -> None:
    (path,) = _kept(tmp_path, {"a.x": 0})
    with path.open("rb") as file:
        hold_in_use(file.fileno())
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    remove_unused(tmp_path, "*.x", max_files=0, now=2e9)
    assert path.exists()
    mapping.close()
    remove_unused(tmp_path, "*.x", max_files=0, now=2e9)
    assert not path.exists()

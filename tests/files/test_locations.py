from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SourceError
from headrace.files import resolve_inside, user_cache_dir


def test_paths_inside_the_root_are_resolved(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "link").symlink_to("sub")
    assert resolve_inside(root, "sub/../a.wav") == root / "a.wav"
    assert resolve_inside(root, root / "sub/a.wav") == root / "sub/a.wav"
    assert resolve_inside(root, "link/a.wav") == root / "sub/a.wav"
    assert resolve_inside(root, ".") == root


@pytest.mark.parametrize("path", ["..", "../other/a", "sub/../../other/a", "/etc/passwd", "out/a", "../root-not/a"])
def test_paths_that_lead_outside_are_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root/out").symlink_to(tmp_path)
    with pytest.raises(SourceError, match="outside its root") as caught:
        resolve_inside(tmp_path / "root", path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", ["a\0b", "loop"])
def test_what_is_no_path_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match="not a usable path"):
        resolve_inside(tmp_path, path)


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("HOME", "/home/me")
    assert user_cache_dir() == Path("/own")
    monkeypatch.setenv("HEADRACE_CACHE", "")
    assert user_cache_dir() == Path("/xdg/headrace")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache_dir() == Path("/home/me/.cache/headrace")

"""`headrace demo`: it shows what it says, checks it, and writes into one folder only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Invoke = Callable[..., Any]
CORPUS = Path(__file__).parents[2] / "data" / "spoken_numbers"

pytestmark = pytest.mark.usefixtures("_audio")


@pytest.fixture
def _audio() -> None:
    pytest.importorskip("soundfile")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The first five recordings, in a folder of their own."""
    folder = tmp_path / "small"
    lines = (CORPUS / "manifest.jsonl").read_text().splitlines()[:5]
    for line in lines:
        audio = json.loads(line)["audio"]
        (folder / audio).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CORPUS / audio, folder / audio)
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def digests_of(text: str) -> list[str]:
    return [
        word
        for line in text.splitlines()
        if "stream digest" in line
        for word in line.replace(",", "").split()
        if len(word) == 32
    ]


def check_demo(invoke: Invoke, corpus: Path, out: Path, num_seqs: int, num_files: int) -> list[str]:
    """Run the demo; return the digests of its two streams."""
    result = invoke("demo", "--corpus", corpus, "--output", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.count(f"{num_seqs} sequences, the whole corpus, each exactly once") == 3
    assert f"4. {num_files} files: a pass is 5 sub-epochs" in result.stdout
    assert f"0 of {num_files // 5} files were in the cache already; a worker starts" in result.stdout
    assert f"{num_files} of {num_files} files were in the cache already" in result.stdout
    assert len(list((out / "files").iterdir())) == num_files
    first, second, by_workers, by_files = digests_of(result.stdout)
    assert first == second == by_workers
    assert len(result.stdout.splitlines()) <= 48
    return [first, by_files]


def test_the_demo_may_run_twice_and_writes_into_its_folder_only(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    out, before = tmp_path / "demo", dict(os.environ)
    digests = [check_demo(invoke, small, out, num_seqs=5, num_files=5) for _ in range(2)]
    assert digests[0] == digests[1]
    assert sorted(path.name for path in out.iterdir()) == ["file_cache", "files", "index", "small.hdf", "sub_epochs.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo", "small", "temporary"]
    assert list((tmp_path / "temporary").iterdir()) == []
    assert dict(os.environ) == before


def test_the_config_that_the_demo_writes_is_one_for_run_and_plan(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    _, digest = check_demo(invoke, small, out, num_seqs=5, num_files=5)
    run = invoke("run", out / "sub_epochs.py", "--quiet")
    assert run.exit_code == 0, run.output
    assert digest in run.stdout
    assert "5 files" in invoke("plan", out / "sub_epochs.py", "--ranks", "1").stdout


@pytest.mark.slow
def test_the_demo_of_all_recordings_has_twenty_files_and_is_short_enough_to_read(
    invoke: Invoke, tmp_path: Path
) -> None:
    check_demo(invoke, CORPUS, tmp_path / "demo", num_seqs=265, num_files=20)


def test_the_demo_with_one_epoch_claims_nothing_about_a_whole_pass(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    result = invoke("demo", "--corpus", small, "--output", tmp_path / "demo", "--epochs", 1)
    assert result.exit_code == 0, result.output
    checks = result.stdout.partition("3. Checks")[2].partition("4. ")[0]
    assert checks
    assert "exactly once" not in checks


def test_the_demo_works_where_there_are_no_worker_processes_and_says_so(
    invoke: Invoke, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    result = invoke("demo", "--corpus", small, "--output", tmp_path / "demo")
    assert result.exit_code == 0, result.output
    assert "  2 workers: not on this machine, worker processes need pidfds" in result.stdout
    assert len(digests_of(result.stdout)) == 3
    assert "5 of 5 files were in the cache already" in result.stdout


def test_the_demo_without_its_corpus_says_where_it_looked(invoke: Invoke, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("demo")
    assert result.exit_code == 2
    assert str(tmp_path / "data" / "spoken_numbers" / "manifest.jsonl") in result.stderr
    assert "--corpus" in result.stderr
    assert not (tmp_path / "demo_out").exists()

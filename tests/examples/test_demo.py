"""`make demo`: it shows what it says, checks it, and writes into one folder only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from demo.__main__ import main

CORPUS = Path(__file__).parents[2] / "data" / "spoken_numbers"

pytest.importorskip("soundfile")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first five recordings, in a folder of their own."""
    folder = tmp_path_factory.mktemp("corpus") / "small"
    lines = (CORPUS / "manifest.jsonl").read_text().splitlines()[:5]
    for line in lines:
        audio = json.loads(line)["audio"]
        (folder / audio).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CORPUS / audio, folder / audio)
    (folder / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def shown(small: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a demo, and its digests; nothing was written elsewhere."""
    folder, before = tmp_path_factory.mktemp("shown"), dict(os.environ)
    with elsewhere(folder):
        digests = check_demo(small, folder / "demo", num_seqs=5, num_files=5)
    assert dict(os.environ) == before
    return folder / "demo", digests


@contextlib.contextmanager
def elsewhere(folder: Path) -> Iterator[None]:
    """Fail if anything but one folder `demo` is made in a folder, where the home and temporary files are too."""
    (folder / "temporary").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(folder / "home"))
        environment.setenv("TMPDIR", str(folder / "temporary"))
        environment.delenv("HEADRACE_CACHE", raising=False)
        environment.setenv("COLUMNS", "100")
        yield
    assert sorted(path.name for path in folder.iterdir()) == ["demo", "temporary"]
    assert list((folder / "temporary").iterdir()) == []


def run_demo(*arguments: object) -> str:
    """Run the demo in this process; return what it prints."""
    with contextlib.redirect_stdout(StringIO()) as screen:
        assert main([str(argument) for argument in arguments]) == 0
    return screen.getvalue()


def headrace(*arguments: object) -> str:
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.decode()


def digests_of(text: str) -> list[str]:
    return [
        word
        for line in text.splitlines()
        if "stream digest" in line
        for word in line.replace(",", "").split()
        if len(word) == 32
    ]


def check_demo(corpus: Path, out: Path, num_seqs: int, num_files: int) -> list[str]:
    """Run the demo; return the digests of its two streams, by itself and from files."""
    shown = run_demo("--corpus", corpus, "--output", out)
    assert shown.count(f"{num_seqs} sequences, the whole corpus, each exactly once") == 3
    assert f"4. {num_files} files: a pass is 5 sub-epochs" in shown
    assert f"0 of {num_files // 5} files were in the cache already; a worker starts" in shown
    assert f"{num_files} of {num_files} files were in the cache already" in shown
    assert len(list((out / "files").iterdir())) == num_files
    first, second, by_workers, by_files = digests_of(shown)
    assert first == second == by_workers
    training = shown.partition("5. Training: ")[2].partition("\nNext: ")[0]
    num_kept_out = num_seqs // 5 if num_seqs > 5 else 0  # there are five recordings of each word, or one
    assert f"\n  {num_seqs - num_kept_out} recordings, in new noise in each epoch, and {num_kept_out} that" in training
    assert training.index("SIGKILL") < training.index(" losses after the resume, ")
    assert training.endswith("bit for bit\n")
    assert max(map(len, training.splitlines())) <= 80
    assert len(shown.splitlines()) <= 81
    return [first, by_files]


@pytest.mark.long
def test_the_demo_may_run_twice_and_writes_into_its_folder_only(small: Path, shown: tuple[Path, list[str]]) -> None:
    out, digests = shown
    with elsewhere(out.parent):
        assert check_demo(small, out, num_seqs=5, num_files=5) == digests
    names = ["file_cache", "files", "index", "small.hdf", "sub_epochs.py", "training"]
    assert sorted(path.name for path in out.iterdir()) == names
    names = ["kept_out.txt", "killed.npz", "train.txt", "uninterrupted.npz"]
    assert sorted(path.name for path in (out / "training").iterdir()) == names


@pytest.mark.long
def test_the_config_that_the_demo_writes_is_one_for_run_and_plan(shown: tuple[Path, list[str]]) -> None:
    out, (_, digest) = shown
    assert digest in headrace("run", out / "sub_epochs.py", "--quiet")
    assert "5 files" in headrace("plan", out / "sub_epochs.py", "--ranks", "1")


@pytest.mark.long
def test_the_demo_of_all_recordings_has_twenty_files_and_is_short_enough_to_read(tmp_path: Path) -> None:
    check_demo(CORPUS, tmp_path / "demo", num_seqs=265, num_files=20)


def test_the_demo_with_one_epoch_claims_nothing_about_a_whole_pass(small: Path, tmp_path: Path) -> None:
    shown = run_demo("--corpus", small, "--output", tmp_path / "demo", "--epochs", 1)
    assert "bit for bit" in shown
    checks = shown.partition("3. Checks")[2].partition("4. ")[0]
    assert checks
    assert "exactly once" not in checks


@pytest.mark.long
def test_the_demo_works_where_there_are_no_worker_processes_and_says_so(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    shown = run_demo("--corpus", small, "--output", tmp_path / "demo")
    assert "  2 workers: not on this machine, worker processes need memfds" in shown
    assert len(digests_of(shown)) == 3
    assert "5 of 5 files were in the cache already" in shown
    assert "bit for bit" in shown


def test_the_demo_without_its_corpus_says_where_it_looked(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    errors = capfd.readouterr().err
    assert str(tmp_path / "data" / "spoken_numbers" / "manifest.jsonl") in errors
    assert "--corpus" in errors
    assert not (tmp_path / "demo_out").exists()


def test_a_folder_that_cannot_be_made_is_named_with_the_option(small: Path, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "file").touch()
    assert main(["--corpus", str(small), "--output", str(tmp_path / "file" / "demo")]) == 1
    errors = capfd.readouterr().err
    assert f"cannot make the folder: Not a directory\n  where: {tmp_path}/file/demo" in errors
    assert "--output" in errors


def test_a_manifest_without_languages_says_which_field_is_missing(small: Path, tmp_path: Path, capfd: Any) -> None:
    corpus = tmp_path / "corpus"
    shutil.copytree(small, corpus)
    lines = [json.loads(line) for line in (small / "manifest.jsonl").read_text().splitlines()]
    for line in lines:
        del line["language"]
    (corpus / "manifest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(SystemExit) as info:
        main(["--corpus", str(corpus), "--output", str(tmp_path / "demo")])
    assert info.value.code in (1, 2)
    errors = capfd.readouterr().err
    assert "there is no field 'language'" in errors
    assert str(corpus / "manifest.jsonl") in errors

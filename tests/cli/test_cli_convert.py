"""`headrace convert`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.sources import AudioSource, HDFSource

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


@pytest.mark.parametrize("compression", ["none", "gzip", "lzf"])
@pytest.mark.parametrize("features", ["raw", "log_mel"])
def test_what_is_written_is_what_the_source_gives(
    invoke: Invoke, small: Path, tmp_path: Path, features: str, compression: str
) -> None:
    manifest, out = small / "manifest.jsonl", tmp_path / "out.hdf"
    options = ["--features", features, "--label", "classes=word", "--text", "orth=word", "--compression", compression]
    result = invoke("convert", manifest, out, *options)
    assert result.exit_code == 0, result.output
    assert "5 sequences" in result.stdout
    source = AudioSource(
        manifest, features=features, targets={"classes": "word", "orth": {"field": "word", "vocab": "bytes"}}
    )
    written = HDFSource(out, index=None)
    assert list(written.index.tags) == list(source.index.tags)
    assert list(written.labels["classes"]) == list(source.labels["classes"])
    for corpus_idx in range(5):
        wanted, found = source.read_seq(corpus_idx), written.read_seq(corpus_idx)
        assert wanted.keys() == found.keys() == {"data", "classes", "orth"}
        for key, array in wanted.items():
            assert found[key].dtype == array.dtype
            assert np.array_equal(found[key], array)
    source.close()
    written.close()


def test_an_existing_file_is_replaced_on_request_only(invoke: Invoke, small: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.hdf"
    out.write_text("precious")
    result = invoke("convert", small / "manifest.jsonl", out)
    assert result.exit_code == 2
    assert "--overwrite" in result.stderr
    assert out.read_text() == "precious"
    assert invoke("convert", small / "manifest.jsonl", out, "--overwrite").exit_code == 0
    assert len(HDFSource(out, index=None)) == 5


def test_a_recording_that_fails_leaves_nothing_and_the_old_file_alone(
    invoke: Invoke, small: Path, tmp_path: Path
) -> None:
    (small / "en" / "3.flac").write_bytes(b"torn")
    folder = tmp_path / "out"
    folder.mkdir()
    old = folder / "old.hdf"
    old.write_text("precious")
    for out in (folder / "new.hdf", old):
        result = invoke("convert", small / "manifest.jsonl", out, "--overwrite")
        assert result.exit_code == 1
        assert "3.flac" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["old.hdf"]
    assert old.read_text() == "precious"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label", "classes"], "expected KEY=FIELD"),
        (["--text", "=word"], "expected KEY=FIELD"),
        (["--label", "a=word", "--text", "a=word"], "'a' is there already"),
        (["--label", "data=word"], "'data' is there already"),
        (["--features", "mfcc"], "mfcc"),
    ],
)
def test_a_wrong_option_is_exit_code_2(
    invoke: Invoke, small: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    result = invoke("convert", small / "manifest.jsonl", tmp_path / "out.hdf", *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out.hdf").exists()


@pytest.mark.parametrize("path", ["../outside.flac", "/etc/passwd"])
def test_audio_outside_of_the_folder_is_refused(invoke: Invoke, small: Path, tmp_path: Path, path: str) -> None:
    shutil.copy(CORPUS / "en" / "0.flac", tmp_path / "outside.flac")
    (small / "manifest.jsonl").write_text(
        json.dumps({"tag": "x", "audio": path, "sample_rate": 8000, "num_samples": 1})
    )
    result = invoke("convert", small / "manifest.jsonl", tmp_path / "out.hdf")
    assert result.exit_code == 1
    assert not (tmp_path / "out.hdf").exists()

"""`headrace inspect`."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from headrace.sources import HDFSource, HDFWriter

Invoke = Callable[..., Any]
MANIFEST = Path(__file__).parents[2] / "data" / "spoken_numbers" / "manifest.jsonl"


def inspect_json(invoke: Invoke, *files: Path) -> list[dict[str, Any]]:
    result = invoke("inspect", *files, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["corpora"]


def test_hdf_files_are_one_corpus(invoke: Invoke, tmp_path: Path, hdf: Path, write_corpus: Callable[..., Path]) -> None:
    other = write_corpus(tmp_path / "b.hdf", num_seqs=4)  # its tags are those of the first file again
    (report,) = inspect_json(invoke, hdf, other)
    assert report["kind"] == "HDF5"
    assert [file["path"] for file in report["files"]] == [str(hdf), str(other)]
    assert [file["bytes"] for file in report["files"]] == [hdf.stat().st_size, other.stat().st_size]
    assert (report["num_seqs"], report["num_duplicate_tags"]) == (14, 4)
    assert report["first_tags"] == [f"seq-{number}" for number in range(5)]
    data, classes = report["keys"]["data"], report["keys"]["classes"]
    assert (data["dtype"], data["shape"], data["sparse"]) == ("float32", [2], False)
    assert data["lengths"]["frames"] == 55 + 10
    assert data["lengths"]["quantiles"]["0.0"] == 1
    assert data["lengths"]["quantiles"]["1.0"] == 10
    assert sum(data["lengths"]["histogram"]["counts"]) == 14
    assert (classes["num_labels"], classes["first_labels"]) == (3, ["x", "y", "z"])


def test_people_see_keys_labels_and_a_histogram(invoke: Invoke, hdf: Path) -> None:
    result = invoke("inspect", hdf)
    assert result.exit_code == 0
    text = result.stdout
    assert f"{hdf} (HDF5, " in text
    assert "data float32[T, 2]" in text
    assert "classes int32[T] of 3 classes" in text
    assert "labels  x, y, z" in text
    assert "frames  10, 1 in each sequence" in text
    assert text.count("█") > 100
    assert max(map(len, text.splitlines())) <= 100 + len(str(hdf))


def test_lengths_that_are_alike_are_drawn_once(invoke: Invoke, tmp_path: Path) -> None:
    with HDFWriter(tmp_path / "t.hdf") as writer:
        for number in range(5):
            array = np.zeros((number + 1, 2), dtype=np.float32)
            writer.append(str(number), {"data": array, "twin": array})
    text = invoke("inspect", tmp_path / "t.hdf").stdout
    assert text.count("  length  ") == 2
    assert text.count("distributed as in data") == 1
    assert sum("█" in line for line in text.splitlines()) == 5


def test_a_manifest_and_an_index_are_inspected_without_reading_audio(invoke: Invoke, tmp_path: Path, hdf: Path) -> None:
    source = HDFSource(hdf, index=None)
    source.index.save(tmp_path / "a.hrindex")
    source.close()
    hdf.unlink()  # what an index says can be seen without its files
    manifest, index = inspect_json(invoke, tmp_path / "a.hrindex", MANIFEST)
    assert (manifest["kind"], index["kind"]) == ("manifest", "index")
    assert manifest["num_seqs"] == 265
    assert manifest["keys"]["data"]["lengths"]["frames"] == 1_638_100
    assert index["num_seqs"] == 10
    assert index["keys"]["data"]["lengths"]["frames"] == 55


def test_an_empty_corpus_is_legal(invoke: Invoke, tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    path = write_corpus(tmp_path / "empty.hdf", num_seqs=0)
    (report,) = inspect_json(invoke, path)
    assert report["num_seqs"] == 0
    assert invoke("inspect", path).exit_code == 0


@pytest.mark.parametrize("truncated", [0, 100, 2000])
def test_a_torn_file_is_exit_code_1_with_its_name(invoke: Invoke, hdf: Path, truncated: int) -> None:
    hdf.write_bytes(hdf.read_bytes()[:truncated])
    result = invoke("inspect", hdf)
    assert result.exit_code == 1
    assert str(hdf) in result.stderr
    assert "Traceback" not in result.stderr


def test_columns_that_do_not_match_are_refused(invoke: Invoke, hdf: Path) -> None:
    with h5py.File(hdf, "r+") as file:
        file["seqLengths"][0, 0] = 1000
    result = invoke("inspect", hdf)
    assert result.exit_code == 1
    assert "lengths of 'data' add up to 1054 frames, but 55 are stored" in result.stderr


@pytest.mark.parametrize("name", ["none.hdf", "none.hrindex"])
@pytest.mark.parametrize("command", ["inspect", "index", "convert"])
def test_a_data_file_that_is_not_there_is_exit_code_1_for_every_command(
    invoke: Invoke, tmp_path: Path, command: str, name: str
) -> None:
    target = [tmp_path / "out.hdf"] if command == "convert" else []
    result = invoke(command, tmp_path / name, *target)
    assert result.exit_code == 1
    assert "no such file" in result.stderr
    assert name in result.stderr


def test_files_of_other_formats_are_corpora_of_their_own(
    invoke: Invoke, tmp_path: Path, hdf: Path, write_corpus: Callable[..., Path]
) -> None:
    tar, lines = tmp_path / "a.tar", tmp_path / "a.txt"
    assert invoke("convert", hdf, tar).exit_code == 0
    lines.write_text("hello\nworld\n")
    other = write_corpus(tmp_path / "b.hdf", num_seqs=2)
    first, second, third = inspect_json(invoke, tar, hdf, lines, other)
    assert [report["kind"] for report in (first, second, third)] == ["tar", "HDF5", "text"]
    assert [report["num_seqs"] for report in (first, second, third)] == [10, 12, 2]
    assert first["keys"]["classes"]["first_labels"] == ["x", "y", "z"]


def test_a_class_and_its_options_can_be_given(invoke: Invoke, tmp_path: Path) -> None:
    tokens = tmp_path / "raw.bin"
    np.arange(100, dtype=np.uint16).tofile(tokens)
    result = invoke("inspect", tokens, "--from", "TokenSource", "--set", "block_length=30", "--set", "dtype=uint16")
    assert result.exit_code == 0, result.output
    assert "4 sequences" in result.stdout
    assert invoke("inspect", tokens).exit_code == 2
    assert "did you mean 'block_length'" in invoke("inspect", tokens, "--set", "block_lenght=3").stderr


def test_a_key_without_time_is_shown_without(invoke: Invoke, tmp_path: Path) -> None:
    objects = tmp_path / "a.jsonl"
    objects.write_text('{"tag": "a", "number": 3}\n')
    assert "number int64[]" in invoke("inspect", objects).stdout.replace("int32[]", "int64[]")


def test_the_size_of_a_folder_is_that_of_its_files(invoke: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("soundfile")
    for name in ("a/one.wav", "b/two.wav"):
        (tmp_path / name).parent.mkdir()
        with wave.open(str(tmp_path / name), "wb") as recording:
            recording.setparams((1, 2, 8000, 0, "NONE", ""))
            recording.writeframes(bytes(20_000))
    (report,) = inspect_json(invoke, tmp_path)
    assert [file["bytes"] for file in report["files"]] == [sum(path.stat().st_size for path in tmp_path.rglob("*.wav"))]

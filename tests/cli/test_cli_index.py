"""`headrace index`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.index import CorpusIndex
from headrace.sources.shared import lines

Invoke = Callable[..., Any]


def index_json(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    result = invoke("index", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_index_is_written_where_it_is_asked_for_and_left_alone_while_it_is_fresh(
    invoke: Invoke, hdf: Path, tmp_path: Path
) -> None:
    out = tmp_path / "a.hrindex"
    report = index_json(invoke, hdf, "--output", out)
    assert (report["path"], report["state"], report["num_seqs"]) == (str(out), "indexed", 10)
    assert CorpusIndex.open(out).digest == report["digest"]
    inode = out.stat().st_ino
    assert index_json(invoke, hdf, "--output", out)["state"] == "up to date, checked"
    assert out.stat().st_ino == inode
    assert index_json(invoke, hdf, "--output", out, "--refresh")["state"] == "indexed"
    assert out.stat().st_ino != inode


def test_an_index_of_files_that_changed_is_built_again(
    invoke: Invoke, hdf: Path, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    out = tmp_path / "a.hrindex"
    digest = index_json(invoke, hdf, "--output", out)["digest"]
    hdf.unlink()
    write_corpus(hdf, num_seqs=11)
    report = index_json(invoke, hdf, "--output", out)
    assert (report["state"], report["num_seqs"]) == ("indexed", 11)
    assert report["digest"] != digest


def test_no_other_file_is_replaced(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("not an index")
    for extra in ((), ("--refresh",)):
        result = invoke("index", hdf, "--output", precious, *extra)
        assert result.exit_code == 2
        assert "not an index" in result.stderr
    assert precious.read_text() == "not an index"


@pytest.mark.parametrize("refresh", [(), ("--refresh",)])
@pytest.mark.parametrize("size", [0, 5, 20, 100, -1])
def test_an_index_that_is_torn_is_built_again(
    invoke: Invoke, hdf: Path, tmp_path: Path, size: int, refresh: tuple[str, ...]
) -> None:
    out = tmp_path / "a.hrindex"
    digest = index_json(invoke, hdf, "--output", out)["digest"]
    whole = out.read_bytes()
    out.write_bytes(whole[:size])
    report = index_json(invoke, hdf, "--output", out, *refresh)
    assert (report["state"], report["digest"]) == ("indexed", digest)
    assert CorpusIndex.open(out).digest == digest


def test_an_index_of_another_format_version_is_built_again(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.hrindex"
    index_json(invoke, hdf, "--output", out)
    whole = bytearray(out.read_bytes())
    whole[8] += 1
    out.write_bytes(whole)
    assert index_json(invoke, hdf, "--output", out)["state"] == "indexed"


def test_a_folder_is_not_replaced(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert invoke("index", hdf, "--output", tmp_path / "folder", "--refresh").exit_code == 2


def test_verify_finds_an_index_that_is_damaged_stale_or_of_other_files(
    invoke: Invoke, hdf: Path, tmp_path: Path, write_corpus: Callable[..., Path]
) -> None:
    out = tmp_path / "a.hrindex"
    index_json(invoke, hdf, "--output", out)
    assert index_json(invoke, hdf, "--output", out, "--verify")["state"] == "verified"
    other = write_corpus(tmp_path / "other.hdf", num_seqs=3)
    assert invoke("index", other, "--output", out, "--verify").exit_code == 1
    whole = out.read_bytes()
    lengths = np.arange(1, 11, dtype=np.int32).tobytes()
    assert lengths in whole
    out.write_bytes(whole.replace(lengths, lengths[4:] + lengths[:4]))
    result = invoke("index", hdf, "--output", out, "--verify")
    assert result.exit_code == 1
    assert str(out) in result.stderr
    out.write_bytes(whole)
    hdf.unlink()
    write_corpus(hdf, num_seqs=11)
    assert invoke("index", hdf, "--output", out, "--verify").exit_code == 1


def test_verify_needs_an_index(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    assert invoke("index", hdf, "--output", tmp_path / "none.hrindex", "--verify").exit_code == 1


@pytest.fixture
def many(tmp_path: Path, write_corpus: Callable[..., Path]) -> list[Path]:
    """Enough files for the cache folder to be used."""
    return [write_corpus(tmp_path / f"{number}.hdf", num_seqs=1, prefix=f"f{number}") for number in range(20)]


def test_without_a_name_the_index_goes_to_the_cache_folder(invoke: Invoke, tmp_path: Path, many: list[Path]) -> None:
    report = index_json(invoke, *many)
    path = Path(report["path"])
    assert path.is_relative_to(tmp_path / "cache")
    inode = path.stat().st_ino
    assert index_json(invoke, *many)["path"] == str(path)
    assert path.stat().st_ino == inode
    index_json(invoke, *many, "--refresh")
    assert path.stat().st_ino != inode
    assert index_json(invoke, *many, "--verify")["digest"] == report["digest"]


def test_people_read_where_it_is(invoke: Invoke, hdf: Path, tmp_path: Path, write_corpus: Callable[..., Path]) -> None:
    twin = write_corpus(tmp_path / "b.hdf")
    text = invoke("index", hdf, twin, "--output", tmp_path / "a.hrindex").stdout
    assert text.startswith("20 sequences indexed in ")
    assert str(tmp_path / "a.hrindex") in text
    assert "10 sequences have the tag of an earlier one" in text
    assert "not kept" in invoke("index", hdf).stdout


def test_a_manifest_is_refused_with_the_way_to_index_it(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    manifest = tmp_path / "a.jsonl"
    manifest.write_text('{"audio": "a.wav"}\n')
    result = invoke("index", manifest)
    assert result.exit_code == 2
    assert "AudioSource" in result.stderr
    assert str(manifest) in result.stderr
    result = invoke("index", hdf, manifest)
    assert result.exit_code == 2
    assert "different formats" in result.stderr
    assert str(manifest) in result.stderr


def test_other_formats_are_indexed_with_the_options_that_are_given(invoke: Invoke, hdf: Path, tmp_path: Path) -> None:
    tar, out = tmp_path / "a.tar", tmp_path / "a.hrindex"
    assert invoke("convert", hdf, tar).exit_code == 0
    report = index_json(invoke, tar, "--output", out)
    assert (report["state"], report["num_seqs"]) == ("indexed", 10)
    assert index_json(invoke, tar, "--output", out)["state"] == "up to date, checked"
    assert index_json(invoke, tar, "--output", out, "--verify")["digest"] == report["digest"]
    some = index_json(invoke, tar, "--output", out, "--set", 'fields={"data": "data.npy"}')
    assert some["state"] == "indexed"  # with other options it is another index
    assert some["digest"] != report["digest"]


def test_what_keeps_no_index_says_so(invoke: Invoke, hdf: Path) -> None:
    result = invoke("index", hdf, "--from", "MemorySource")
    assert result.exit_code == 2
    assert "keeps no index" in result.stderr


def test_lines_that_are_encoded_are_indexed_by_processes_and_a_conversion_is_named(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_STRETCH_BYTES", 5000)
    text = tmp_path / "x.txt"
    text.write_text("b a\n" * 10_000)
    options = ["--set", 'vocab={"class": "Vocabulary", "labels": ["a", "b"], "unknown_label": null}']
    outputs = []
    for num_workers in (0, 2):
        out = tmp_path / f"{num_workers}.hrindex"
        result = invoke("index", text, *options, "--output", out, "--num-workers", num_workers)
        assert result.exit_code == 0, result.output
        assert "`headrace convert` with the same options" in result.stdout
        assert "indexing" not in result.output  # it took no two seconds
        outputs.append(CorpusIndex.open(out).digest)
    assert outputs[0] == outputs[1]

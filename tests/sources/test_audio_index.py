"""`AudioSource` and its index: gathered from the manifest, found in the cache folder, or named by the user.

The manifests of most tests name files of no content, with lengths in the manifest: only the tests that read audio need
recordings.
"""

import json
import pickle
import shutil

import pytest

from headrace.errors import SourceError
from headrace.sources import AudioSource, LogMel
from headrace.sources.shared import listed as listed_module

WORDS = ["eins", "zwei", "drei"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def scans(monkeypatch):
    """The manifests that were scanned, one entry a scan."""
    scanned = []
    gather = listed_module._gather

    def counting(listed, entries):
        scanned.append(listed.listed_in)
        return gather(listed, entries)

    monkeypatch.setattr(listed_module, "_gather", counting)
    return scanned


def write_manifest(folder, num_seqs=2500, words=WORDS, **fields):
    """Write a manifest of `num_seqs` lines about one empty file; if not given, line i has 800 + i samples."""
    folder.mkdir(exist_ok=True)
    (folder / "a.wav").touch()
    path = folder / "manifest.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        for idx in range(num_seqs):
            record = {"tag": f"s/{idx}", "audio": "a.wav", "num_samples": 800 + idx, "sample_rate": 8000, **fields}
            record |= {"word": words[idx % len(words)], "words": "größe"[: idx % 6]}
            file.write(json.dumps(record) + "\n")
    return path


@pytest.fixture
def manifest(tmp_path):
    return write_manifest(tmp_path / "corpus")


def num_indices(cache):
    return len(list(cache.rglob("*.hrindex")))


def test_a_large_manifest_is_scanned_once_and_opens_from_the_cache_folder_as_it_was(manifest, cache, scans):
    options = {
        "features": {"num_mels": 20},
        "targets": {"classes": "word", "orth": "words", "chars": {"field": "words", "vocab": "chars"}},
    }
    first = AudioSource(manifest, **options)
    (manifest.parent / "a.wav").unlink()  # a scan would miss it
    second = AudioSource(manifest, **options)
    assert (len(scans), num_indices(cache)) == (1, 1)
    assert second.index.path == first.index.path
    assert second.specs == first.specs
    assert second.labels == first.labels == {"classes": sorted(WORDS), "chars": list("egrßö")}
    assert second.sample_rate == 8000
    assert second.specs["data"].dim == 20
    assert [second.labels["classes"][second.read(idx, "classes")] for idx in range(4)] == [*WORDS, WORDS[0]]
    assert second.read(5, "orth").tobytes().decode() == "größe"
    assert second.read(5, "chars").tolist() == [1, 2, 4, 3, 0]
    assert second.index.lengths("data")[7] == LogMel(8000).num_frames(807)
    first.close()
    second.close()


def test_a_recording_that_vanished_since_is_missed_when_it_is_read_and_by_a_scan(manifest):
    pytest.importorskip("soundfile")
    AudioSource(manifest)
    (manifest.parent / "a.wav").unlink()
    source = AudioSource(manifest)
    with pytest.raises(SourceError, match=r"cannot be read.*\n?.*a\.wav"):
        source.read(3, "data")
    source.close()
    with pytest.raises(SourceError, match="is missing"):
        AudioSource(manifest, index=None)


VARIANTS = [
    {},
    {"features": "log_mel"},
    {"features": {"step_seconds": 0.02}},
    {"sample_rate": 16000},
    {"tag_field": "word"},
    {"tag_field": None},
    {"length_field": "frames"},
    {"audio_field": "copy"},
    {"targets": {"x": "word"}},
    {"targets": {"y": "word"}},
    {"targets": {"x": "words"}},
    {"targets": {"x": "word", "y": "word"}},
    {"targets": {"y": "word", "x": "word"}},
    {"targets": {"x": {"field": "word", "vocab": WORDS}}},
    {"targets": {"x": {"field": "word", "vocab": WORDS[::-1]}}},
    {"targets": {"x": {"field": "word", "vocab": {"eins": 5, "zwei": 5, "drei": 0}}}},
    {"targets": {"x": {"field": "word", "vocab": "chars"}}},
    {"targets": {"x": {"field": "word", "vocab": "chars", "labels": "einszwdr"}}},
    {"targets": {"x": {"field": "word", "vocab": "bytes"}}},
    {"targets": {"x": {"field": "index", "vocab": 5}}},
    {"targets": {"x": {"field": "index", "vocab": 6}}},
]


def test_each_option_that_changes_what_is_known_has_an_index_of_its_own(tmp_path, cache, scans):
    manifest = write_manifest(tmp_path / "corpus", copy="a.wav", frames=5, index=3)
    root = tmp_path / "elsewhere"
    shutil.copytree(manifest.parent, root)
    variants = [*VARIANTS, {"root": root}]
    gathered = [AudioSource(manifest, index=None, **options) for options in variants]
    scans.clear()
    for _ in range(2):
        for options, wanted in zip(variants, gathered, strict=True):
            source = AudioSource(manifest, **options)
            assert source.specs == wanted.specs
            assert source.labels == wanted.labels
            assert source.sample_rate == wanted.sample_rate
            assert source.index.meta == wanted.index.meta
            assert source.index.digest == wanted.index.digest
    assert len(scans) == num_indices(cache) == len(variants)


def test_options_that_mean_the_same_share_an_index(manifest, cache):
    link = manifest.parent.parent / "link"
    link.symlink_to(manifest.parent)
    for options in ({}, {"channel": 1}, {"root": manifest.parent}, {"root": str(link)}):
        AudioSource(manifest, **options)
    assert num_indices(cache) == 1
    for vocab in (WORDS, tuple(WORDS), {"drei": 2, "zwei": 1, "eins": 0}):
        AudioSource(manifest, targets={"x": {"field": "word", "vocab": vocab}})
    assert num_indices(cache) == 2


def test_a_named_index_is_opened_without_a_scan_also_where_the_corpus_was_moved_with_it(manifest, tmp_path, scans):
    path = manifest.parent / "corpus.hrindex"
    wanted = AudioSource(manifest, index=None, targets={"classes": "word"})
    wanted.index.save(path)
    moved = shutil.move(manifest.parent, tmp_path / "moved")
    source = AudioSource(moved / manifest.name, index=moved / path.name, targets={"classes": "word"})
    assert len(scans) == 1
    assert source.index.path == str(moved / path.name)
    assert source.labels == wanted.labels
    assert source.read(1, "classes").tolist() == 2
    source.close()


def test_a_copy_is_small_opens_the_index_for_itself_and_knows_the_learnt_labels(manifest, scans):
    targets = {"x": {"field": "tag", "vocab": None}, "classes": "word", "orth": "words"}
    source = AudioSource(manifest, features="log_mel", targets=targets)
    assert len(source.labels["x"]) == 2500
    data = pickle.dumps(source)
    assert len(data) < 1500
    copy = pickle.loads(data)
    assert (copy.specs, copy.labels, copy.sample_rate) == (source.specs, source.labels, source.sample_rate)
    assert copy.read(4, "x").tolist() == source.read(4, "x").tolist()
    assert copy.read(4, "classes").tolist() == source.read(4, "classes").tolist()
    assert len(scans) == 1
    for opened in (source, copy):
        opened.close()

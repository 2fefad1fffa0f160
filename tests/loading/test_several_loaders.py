"""Several loaders in one process: what they share, and that they do not disturb each other."""

import numpy as np
import pytest

from headrace.batching import Buckets, FixedCount, FrameBudget
from headrace.datasets import StaticDataset
from headrace.index import CorpusIndex, policy
from headrace.loading import DataLoader
from headrace.sources import HDFWriter


@pytest.fixture
def hdf(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(policy, "_MIN_CACHED_SEQS", 10)
    path = str(tmp_path / "a.hdf")
    with HDFWriter(path) as writer:
        for i in range(40):
            writer.append(f"{i}", {"data": np.full((i % 7 + 1, 2), i, np.float32)})
    return path


def test_the_index_of_a_corpus_is_built_once_and_its_digest_as_well(hdf, monkeypatch):
    num_built, num_digests = [], []
    build, digest = policy._built, CorpusIndex._computed_digest
    monkeypatch.setattr(policy, "_built", lambda *args: num_built.append(1) or build(*args))
    monkeypatch.setattr(CorpusIndex, "_computed_digest", lambda index: num_digests.append(1) or digest(index))
    config = {"class": "HDFDataset", "files": [hdf]}
    options = {"batching": FrameBudget(20), "num_workers": 1, "executor": "thread"}
    with (
        DataLoader({**config, "seq_ordering": "random"}, **options) as train,
        DataLoader(config, **options) as dev,
    ):
        for loader in (train, dev, train):
            assert sorted(tag for batch in loader for tag in batch.tags) == sorted(map(str, range(40)))
            loader.state_dict()
    assert len(num_built) == len(num_digests) == 1


def test_the_digest_of_a_corpus_in_memory_is_made_once(seqs, monkeypatch):
    num_digests, digest = [], CorpusIndex._computed_digest
    monkeypatch.setattr(CorpusIndex, "_computed_digest", lambda index: num_digests.append(1) or digest(index))
    dataset = StaticDataset(seqs, seq_ordering="random")
    with (
        DataLoader(dataset, batching=FixedCount(4)) as first,
        DataLoader(dataset, batching=Buckets(FrameBudget(40), num_buckets=2)) as second,
    ):
        for loader in (first, second):
            list(loader)
            loader.state_dict()
            loader.set_epoch(5)
            loader.state_dict()
    assert len(num_digests) == 1


def test_workers_that_were_started_early_do_the_same(seqs):
    dataset = StaticDataset(seqs, seq_ordering="random")
    with DataLoader(dataset, batching=FixedCount(4)) as loader:
        expected = [batch.tags for batch in loader]
    with (
        DataLoader(dataset, batching=FixedCount(4), num_workers=1) as train,
        DataLoader(StaticDataset(seqs), batching=FixedCount(4), num_workers=1) as dev,
    ):
        train.start()
        dev.start()
        train.start()
        for batch, tags, dev_batch in zip(train, expected, dev, strict=True):
            assert batch.tags == tags
            assert dev_batch.tags == [f"seq-{i}" for i in dev_batch.corpus_idx.tolist()]
    with DataLoader(dataset, batching=FixedCount(4), num_workers=1) as loader:
        loader.start()  # and never used

"""A loader says what a conversion would save."""

import pytest

import headrace as hr
from headrace import DataLoader, FixedCount
from headrace.datasets.files.mapped import dataset_over
from headrace.sources import TextSource

VOCAB = {"class": "Vocabulary", "labels": ["a", "b"], "unknown_label": None}


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("a b\nb\na a\n")
    return lambda vocab: TextSource(path, fields={"data": {"field": "text", "vocab": vocab}})


def explained(dataset):
    with DataLoader(dataset, batching=FixedCount(2), num_workers=0) as loader:
        next(iter(loader))
        return loader.explain()


def test_a_loader_says_that_each_epoch_encodes_texts(source):
    assert "`headrace convert`" in explained(source(VOCAB))
    assert "`headrace convert`" not in explained([{"data": [1, 2]}])


def test_a_loader_says_it_of_what_is_made_of_texts(source):
    texts, others = source(VOCAB), hr.MapDatasetWrapper([{"data": [1, 2]}] * 3)
    shown = hr.PostprocessingDataset(dataset=dataset_over(texts), map_seq=lambda seq: seq)
    assert "`headrace convert`" in explained(shown)
    joined = hr.CombinedDataset(
        datasets={"texts": dataset_over(texts), "others": others},
        data_map={("texts", "data"): "data", ("others", "data"): "more"},
    )
    assert "`headrace convert`" in explained(joined)

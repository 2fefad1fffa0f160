"""The epoch API over any source, alone and inside of the datasets that hold others."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.datasets import SourceDataset, init_dataset
from headrace.datasets.distribute.sub_dataset import SubDatasetDefaults, make_sub_dataset
from headrace.errors import ConfigError, SourceError
from headrace.sources import HDFWriter, MemorySource, Source

NUM_SEQS = 7


class BareSource(MemorySource):
    """A source that has files and no index to keep."""

    def __init__(self, files: Any) -> None:
        super().__init__([{"data": np.zeros((2, 1), np.float32)}])
        self.files = files


class Ramps(Source):
    """A source that says nothing of labels."""

    index = hr.CorpusIndex.from_columns(tags=["a", "b"], lengths={"data": [2, 3]})

    def read(self, corpus_idx: int, data_key: str) -> np.ndarray:
        return np.arange(2 + corpus_idx, dtype=np.float32)


def write(path: Path, prefix: str, num_seqs: int = NUM_SEQS) -> str:
    with HDFWriter(path) as writer:
        for number in range(num_seqs):
            data = np.full((1 + number * 3 % 5, 2), number, np.float32)
            writer.append(f"{prefix}/{number}", {"data": data, "classes": np.array([number], np.int32)})
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    return [write(tmp_path / f"{name}.hdf", name) for name in "abc"]


def stream(dataset: hr.Dataset, epochs: range = range(1, 3)) -> list[Any]:
    seqs = [
        (seq.tag, {key: array.tolist() for key, array in seq.features.items()})
        for epoch in epochs
        for seq in dataset.epoch(epoch)
    ]
    dataset.close()
    return seqs


def described_as(files: list[str]) -> list[dict[str, Any]]:
    """Return the ways to say the same source."""
    return [
        {"source": {"class": "HDFSource", "files": files}},
        {"source": {"class": "HDFSource"}, "files": files},
        {"source": files},
        {"files": files},
        {"source": str(Path(files[0]).parent / "*.hdf")},
        {"source": {"class": "HDFSource", "files": files, "index": None}},
        {"files": files, "index": None},
    ]


def test_the_stream_is_that_of_the_class_for_the_format_however_it_is_said(files: list[str]) -> None:
    options = {"seq_ordering": "laplace:2", "partition_epoch": 2}
    wanted = stream(init_dataset({"class": "HDFDataset", "files": files, **options}))
    for said in described_as(files):
        dataset = init_dataset({"class": "SourceDataset", **said, **options})
        copy = pickle.loads(pickle.dumps(dataset))
        assert stream(dataset) == wanted
        copy.initialize()
        assert stream(copy) == wanted
    config = {"class": "SourceDataset", **described_as(files)[1], **options}
    assert stream(hr.MultiProcDataset(config, num_workers=1, buffer_size=3)) == wanted


def test_a_source_of_ones_own_is_taken_as_it_is() -> None:
    source = MemorySource([{"data": np.arange(n, dtype=np.float32)} for n in (3, 1, 2)])
    dataset = SourceDataset(source, seq_ordering="sorted")
    dataset.initialize()
    assert dataset.source is source
    assert [len(seq["data"]) for seq in dataset.epoch(1)] == [1, 2, 3]


def test_the_files_of_a_sub_epoch_come_from_outside(files: list[str], tmp_path: Path) -> None:
    inside = {"class": "SourceDataset", "seq_ordering": "random"}
    by_option = lambda found: {**inside, "source": {"class": "HDFSource"}, "files": found}  # noqa: E731
    by_format = lambda found: {**inside, "source": {"class": "HDFSource", "files": found}}  # noqa: E731
    by_class = lambda found: {**inside, "class": "HDFDataset", "files": found}  # noqa: E731

    def read(function: Any) -> list[Any]:
        options = {"seq_ordering": "random", "partition_epoch": 3, "num_workers": 0, "executor": "inline"}
        return stream(hr.DistributeFilesDataset(files=files, get_sub_epoch_dataset=function, **options), range(1, 4))

    assert read(by_option) == read(by_format) == read(by_class)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "named twice"),
        ({"source": "a.hdf", "files": "a.hdf"}, "named twice"),
        ({"source": {"class": "HDFSource", "files": "a.hdf"}, "files": "b.hdf"}, "named twice"),
        ({"source": {"class": "HDFSorce"}, "files": "b.hdf"}, "did you mean 'HDFSource'"),
        ({"source": {"class": "HDFSource"}}, "needs the option 'files'"),
        ({"source": MemorySource([]), "files": "a.hdf"}, "built already"),
        ({"source": {"class": BareSource}, "files": "x", "index": "x.hrindex"}, "no index that could be kept"),
        ({"source": "none.hdf"}, r"none\.hdf"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceError if "none.hdf" in str(options) else ConfigError, match=message):
        SourceDataset(**options)


def test_files_that_are_others_in_each_epoch_keep_no_index(files: list[str]) -> None:
    def sub_epoch(found: list[Any]) -> dict[str, Any]:
        return {"class": "SourceDataset", "source": {"class": "HDFSource"}, "files": found}

    made = make_sub_dataset(sub_epoch, list(files), SubDatasetDefaults(files_change=True), "a test")
    assert made == {**sub_epoch(list(files)), "index": None}
    made = make_sub_dataset(sub_epoch, list(files), SubDatasetDefaults(), "a test")
    assert made == sub_epoch(list(files))
    own = {"class": f"{__name__}:OwnIndexDataset", "index": "something else"}
    assert make_sub_dataset(lambda _: own, [], SubDatasetDefaults(files_change=True), "a test") == own


class OwnIndexDataset(hr.StaticDataset):
    """A class of the user's own, to which `index` means something else."""

    def __init__(self, index: str = "") -> None:
        super().__init__([{"data": [1]}])


class OneThreadSource(Source):
    """Of somebody else: it has a position, as an open file has, and says nothing of other readers."""

    def __init__(self, files):
        self.files = files
        self._inner = MemorySource([{"data": np.full((2, 1), number, np.float32)} for number in range(40)])
        self.specs, self.labels = self._inner.specs, self._inner.labels
        self._thread = None

    @property
    def index(self):
        return self._inner.index

    def __getstate__(self):
        return {**self.__dict__, "_thread": None}

    def read(self, corpus_idx, data_key):
        me = threading.get_ident()
        self._thread = me if self._thread is None else self._thread
        if me != self._thread:
            raise SourceError("two threads read from one file", where=str(self.files))
        return self._inner.read(corpus_idx, data_key)


def test_threads_have_sources_of_their_own_if_a_source_does_not_say_how_to_share(tmp_path):
    dataset = SourceDataset(OneThreadSource([str(tmp_path)]))
    with hr.DataLoader(dataset, batching=hr.FixedCount(1), num_workers=3, executor="thread") as loader:
        assert [batch["data"][0, 0, 0] for batch in loader] == list(range(40))


def test_a_source_of_a_user_needs_no_labels_and_is_told_of_specs_that_it_lacks() -> None:
    with pytest.raises(ConfigError, match="Ramps has no specs, which say what its data keys are"):
        SourceDataset(Ramps())
    ramps = Ramps()
    ramps.specs = {"data": hr.DataSpec("float32", ())}
    with SourceDataset(ramps) as dataset:
        assert dataset.labels == {}
        assert [seq["data"].tolist() for seq in dataset.epoch(1)] == [[0, 1], [0, 1, 2]]

"""The same dict in RETURNN's `init_dataset` and in ours: the same tags, and the same arrays bit for bit."""

from __future__ import annotations

import copy
import gc
import io
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.datasets import init_dataset
from headrace.sources import HDFWriter

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_init_dataset = pytest.importorskip("returnn.datasets.basic").init_dataset

pytestmark = pytest.mark.filterwarnings("ignore")
EPOCHS = range(1, 5)


@pytest.fixture(autouse=True)
def _files_that_the_peer_forgets() -> Iterator[None]:
    """Close them here, where a warning of it is ignored, and not in another test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two HDF5 files with tags of their own and a third with those of the first; lists, lengths, lines of text."""
    path = tmp_path_factory.mktemp("returnn")
    rng = np.random.default_rng(1)
    for name, prefix, num_seqs in (("a", "a", 11), ("b", "b", 6), ("more", "a", 11)):
        with HDFWriter(path / f"{name}.hdf", labels={"classes": [f"w{i}" for i in range(5)]}) as writer:
            for number in rng.permutation(num_seqs) if name == "more" else range(num_seqs):
                frames = 1 + int(rng.integers(0, 9))
                data = rng.normal(size=(frames, 3)).astype(np.float32)
                classes = rng.integers(0, 5, frames).astype(np.int32)
                writer.append(f"{prefix}-{number}", {"data": data, "classes": classes})
    (path / "concat.txt").write_text("a-0;a-3\na-1\na-5;a-2;a-4\n")
    (path / "lengths.txt").write_text(repr({f"a-{number}": 7 for number in range(11)}))
    (path / "lines.txt").write_text("hello world\nthe headrace\n\nbrings water to the mill\nto the wheel\n")
    (path / "chars.txt").write_text(repr({char: i for i, char in enumerate("abcdefghijklmnopqrstuvwxyz ")}))
    words = ["hello", "world", "the", "headrace", "brings", "water", "to", "mill", "wheel", "[END]", "[UNKNOWN]"]
    (path / "words.txt").write_text("".join(f"{word}\n" for word in words))
    return path


def _hdf(*names: str, **options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {"class": "HDFDataset", "files": [str(folder / f"{name}.hdf") for name in names], **options}


def _meta(folder: Path) -> dict[str, Any]:
    return {
        "class": "MetaDataset",
        "datasets": {
            "features": _hdf("a")(folder),
            "targets": _hdf("more", seq_ordering="laplace:3", partition_epoch=2)(folder),
        },
        "data_map": {"data": ("features", "data"), "classes": ("targets", "classes")},
        "seq_order_control_dataset": "targets",
    }


def _combined(order: str, inner: str = "random", **options: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda folder: {
        "class": "CombinedDataset",
        "datasets": {"one": _hdf("a", seq_ordering=inner)(folder), "two": _hdf("b")(folder)},
        "data_map": {("one", "data"): "data", ("two", "data"): "data", ("one", "classes"): "classes"},
        "seq_ordering": order,
        **options,
    }


class _Squares:
    """A map-style dataset without torch or RETURNN."""

    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"data": np.full((number + 1, 2), number * number, np.float32)}

    def get_seq_len(self, number: int) -> int:
        return number + 1


def _wrapper(folder: Path) -> dict[str, Any]:
    from returnn.datasets.map import MapDatasetBase

    class Squares(MapDatasetBase):
        __getitem__, __len__, get_seq_len = _Squares.__getitem__, _Squares.__len__, _Squares.get_seq_len

        def __init__(self) -> None:
            super().__init__(data_types={"data": {"dim": 2, "shape": (None, 2), "dtype": "float32"}})

    return {"class": "MapDatasetWrapper", "map_dataset": Squares(), "seq_ordering": "laplace:2"}


def _wrapper_of_little(folder: Path) -> dict[str, Any]:
    from returnn.datasets.map import MapDatasetBase

    class Little(MapDatasetBase):
        def __init__(self) -> None:
            super().__init__(data_types={"data": {"dim": 2, "shape": (None, 2), "dtype": "float32"}})

        def __len__(self) -> int:
            return 9

        def __getitem__(self, number: int) -> dict[str, Any]:
            return {"data": np.full((number + 1, 2), number, np.float32)}

    return {"class": "MapDatasetWrapper", "map_dataset": Little, "seq_ordering": "random"}


DICTS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "HDF in partitions": _hdf("a", "b", seq_ordering="laplace:.3", partition_epoch=3),
    "HDF with a fixed seed": _hdf("a", seq_ordering="random:2", fixed_random_seed=7),
    "HDF with a window": _hdf("a", window=3, seq_ordering="sorted_reverse"),
    "Meta": _meta,
    "Concat": lambda folder: {"class": "ConcatDataset", "datasets": [_hdf("a")(folder), _hdf("b")(folder)]},
    "Combined, default": _combined("default"),
    # Sub-epochs of ours divide one order of the parts; in RETURNN the parts go on to their next epoch in between.
    "Combined, random": _combined("random", inner="default", partition_epoch=2),
    "Combined, random_dataset": _combined("random_dataset"),
    "Combined, interleave": _combined("interleave"),
    "Combined, sizes": _combined("default", repeat_epoch=2),
    "ConcatSeqs": lambda folder: {
        "class": "ConcatSeqsDataset",
        "dataset": _hdf("a")(folder),
        "seq_list_file": str(folder / "concat.txt"),
        "seq_len_file": str(folder / "lengths.txt"),
    },
    "MultiEpoch": lambda folder: {
        "class": "MultiEpochDataset",
        "multi_epoch": 2,
        "dataset": _hdf("a", seq_ordering="random", partition_epoch=4)(folder),
    },
    "Postprocessing": lambda folder: {
        "class": "PostprocessingDataset",
        "dataset": _hdf("a", seq_ordering="random", partition_epoch=2)(folder),
        "map_seq": lambda data, **_other: data,
    },
    "Static": lambda _: {
        "class": "StaticDataset",
        "data": [{"data": np.full((n, 2), n, np.float32), "classes": np.arange(n, dtype=np.int32)} for n in (3, 1, 2)],
        "input_dim": 2,
        "output_dim": {"data": [2, 2], "classes": [3, 1]},
        "seq_ordering": "sorted",
    },
    "MapDatasetWrapper": _wrapper,
    "MapDatasetWrapper, no lengths": _wrapper_of_little,
    "Lm, characters": lambda folder: {
        "class": "LmDataset",
        "corpus_file": str(folder / "lines.txt"),
        "orth_vocab": {"class": "CharacterTargets", "vocab_file": str(folder / "chars.txt"), "unknown_label": None},
        "seq_ordering": "random",
    },
    "Lm, words": lambda folder: {
        "class": "LmDataset",
        "corpus_file": str(folder / "lines.txt"),
        "orth_symbols_file": str(folder / "words.txt"),
        "word_based": True,
        "seq_end_symbol": "[END]",
        "auto_replace_unknown_symbol": True,
        "partition_epoch": 2,
    },
}


def read(dataset: Any, epoch: int) -> list[tuple[str, dict[str, tuple[str, tuple[int, ...], bytes]]]]:
    dataset.init_seq_order(epoch=epoch)
    seqs, i = [], 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        arrays = {key: np.asarray(dataset.get_data(i, key)) for key in sorted(dataset.get_data_keys())}
        seqs.append((str(dataset.get_tag(i)), {k: (a.dtype.name, a.shape, a.tobytes()) for k, a in arrays.items()}))
        i += 1
    return seqs


@pytest.mark.parametrize("name", DICTS)
def test_the_same_dict_gives_the_same_tags_and_arrays(folder: Path, name: str) -> None:
    theirs = peer_init_dataset(copy.deepcopy(DICTS[name](folder)))
    ours = init_dataset(DICTS[name](folder))
    if name == "Concat":
        theirs.init_seq_order(epoch=1)  # it knows no data keys before
    keys = sorted(ours.get_data_keys())
    assert keys == sorted(theirs.get_data_keys())
    for key in keys:
        assert ours.get_data_dim(key) == theirs.get_data_dim(key), key
        assert ours.is_data_sparse(key) == theirs.is_data_sparse(key), key
    for epoch in EPOCHS:
        assert read(ours, epoch) == read(theirs, epoch), (name, epoch)
    ours.close()


def test_an_archive_of_recordings_gives_the_same_tags_and_arrays(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    rng = np.random.default_rng(2)
    entries = []
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as archive:
        for number in range(5):
            samples = (rng.normal(size=800 * (number + 1)) * 3000).astype(np.int16)
            data = io.BytesIO()
            soundfile.write(data, samples, 8000, format="WAV", subtype="PCM_16")
            archive.writestr(f"corpus/{number}.wav", data.getvalue())
            entries.append({"text": f"say {number}", "duration": len(samples) / 8000, "file": f"{number}.wav"})
        archive.writestr("corpus.txt", repr(entries))
    config = {
        "class": "OggZipDataset",
        "path": [str(tmp_path / "corpus.zip")],
        "audio": {"features": "raw", "sample_rate": 8000},
        "targets": {"class": "Utf8ByteTargets"},
        "seq_ordering": "laplace:2",
        "partition_epoch": 2,
    }
    ours, theirs = init_dataset(dict(config)), peer_init_dataset(copy.deepcopy(config))
    for epoch in EPOCHS:
        found, wanted = read_keys(ours, epoch), read_keys(theirs, epoch)
        assert found == wanted
    ours.close()


def read_keys(dataset: Any, epoch: int) -> list[Any]:
    """Read tags, samples and targets: the texts as arrays of characters are a matter of taste."""
    return [(tag, arrays["data"], arrays["classes"]) for tag, arrays in read_some(dataset, epoch, ("data", "classes"))]


def read_some(dataset: Any, epoch: int, keys: tuple[str, ...]) -> list[Any]:
    dataset.init_seq_order(epoch=epoch)
    seqs, i = [], 0
    while dataset.is_less_than_num_seqs(i):
        dataset.load_seqs(i, i + 1)
        arrays = {key: np.asarray(dataset.get_data(i, key)) for key in keys}
        seqs.append((str(dataset.get_tag(i)), {k: (a.dtype.name, a.shape, a.tobytes()) for k, a in arrays.items()}))
        i += 1
    return seqs

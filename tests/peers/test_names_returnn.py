"""Names of RETURNN's that its users call, against the real classes."""

import warnings
import zipfile

import numpy as np
import pytest

import headrace.datasets
from headrace.datasets import StaticDataset, init_dataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    peer_generating = pytest.importorskip("returnn.datasets.generating")
    peer_basic = pytest.importorskip("returnn.datasets.basic")

pytestmark = pytest.mark.filterwarnings("ignore")


SEQS = [{"data": np.full((4, 2), i, np.float32), "classes": np.arange(i, i + 4, dtype=np.int32) % 3} for i in range(6)]
OUTPUTS = {"data": (2, 2), "classes": (3, 1)}


def test_older_names_of_data_are_the_same():
    for module in (headrace.datasets, peer_generating):
        dataset = module.StaticDataset(SEQS, output_dim=OUTPUTS)
        dataset.initialize()
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(0, 2)
        np.testing.assert_array_equal(dataset.get_input_data(1), dataset.get_data(1, "data"))
        np.testing.assert_array_equal(dataset.get_targets("classes", 1), dataset.get_data(1, "classes"))


@pytest.mark.parametrize("options", [{}, {"start_seq_idx": 2}, {"start_seq_idx": 1, "max_seqs": 3}, {"max_seqs": 0}])
def test_a_copy_in_memory_holds_the_same(options):
    if options.get("max_seqs") == 0:
        ours = StaticDataset.copy_from_dataset(started(headrace.datasets), **options)
        assert len(list(ours.epoch(1))) == 0  # RETURNN refuses an empty one
        return
    ours = StaticDataset.copy_from_dataset(started(headrace.datasets), **options)
    theirs = peer_generating.StaticDataset.copy_from_dataset(started(peer_generating), **options)
    both = StaticDataset.copy_from_dataset(started(peer_generating), **options)
    found = []
    for dataset in (ours, theirs, both, StaticDataset.copy_from_dataset(ours)):
        dataset.initialize()
        dataset.init_seq_order(epoch=1)
        dataset.load_seqs(0, dataset.num_seqs)
        assert sorted(dataset.get_data_keys()) == ["classes", "data"]
        found.append(
            [
                (dataset.get_data(i, "data").tolist(), dataset.get_data(i, "classes").tolist())
                for i in range(dataset.num_seqs)
            ]
        )
        assert (dataset.get_data_dim("data"), dataset.get_data_dim("classes")) == (2, 3)
    assert found[0] == found[1] == found[2] == found[3]


def started(module):
    options = {"input_dim": 2, "output_dim": 3, "num_seqs": 6, "seq_len": 4}
    dataset = peer_generating.DummyDataset(**options, seq_ordering="random")
    if module is headrace.datasets:
        plain = peer_generating.DummyDataset(**options)
        plain.init_seq_order(epoch=1)
        plain.load_seqs(0, 6)
        types = {"data": {"shape": (None, 2)}, "classes": {"dim": 3, "sparse": True, "dtype": "int32"}}
        seqs = [{key: plain.get_data(i, key) for key in types} for i in range(6)]
        dataset = headrace.datasets.MapDataset(seqs, data_types=types, seq_ordering="random")
    dataset.initialize()
    dataset.init_seq_order(epoch=3)
    return dataset


def test_the_vocabulary_of_an_archive_answers_by_its_names(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("x.txt", repr([{"text": "ab", "duration": 1.0, "file": "a.wav"}]))
    (tmp_path / "vocab").write_text(repr({"a": 0, "b": 1}))
    config = {
        "class": "OggZipDataset",
        "path": str(tmp_path / "x.zip"),
        "audio": None,
        "targets": {"class": "CharacterTargets", "vocab_file": str(tmp_path / "vocab"), "unknown_label": None},
    }
    found = []
    for make in (init_dataset, peer_basic.init_dataset):
        targets = make(config).targets
        assert list(targets.labels) == ["a", "b"]
        answers = [targets.num_labels, targets.id_to_label(1), targets.label_to_id("a"), targets.is_id_valid(2)]
        answers += [targets.get_seq("ba"), targets.get_seq_labels([1, 1, 0])]
        answers += [targets.id_to_label(5, default=None), targets.label_to_id("x", default=None)]
        for wrong in (lambda targets=targets: targets.id_to_label(2), lambda targets=targets: targets.label_to_id("x")):
            with pytest.raises(KeyError):
                wrong()
        found.append(answers)
    assert found[0] == found[1]
    without = init_dataset({**config, "targets": None})
    assert without.targets is None


def test_the_workers_of_the_peers_own_loader_share_out_a_dataset_of_ours():
    data = pytest.importorskip("torch.utils.data")
    wrapper = pytest.importorskip("returnn.torch.data.returnn_dataset_wrapper")
    dataset = StaticDataset([{"data": np.full([2, 1], place, np.float32)} for place in range(11)])
    dataset.set_sharding(num_shards=2, shard_index=1)
    pipe = wrapper.ReturnnDatasetIterDataPipe(dataset, reset_callback=None, shard_workers=True)
    read = sorted(int(seq["data"][0, 0]) for seq in data.DataLoader(pipe, batch_size=None, num_workers=2))
    dataset.init_seq_order(epoch=1)
    assert read == [dataset.get_corpus_seq_idx(place) for place in range(dataset.num_seqs)] != []

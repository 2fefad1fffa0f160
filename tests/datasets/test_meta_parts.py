"""`MetaDataset` with sub-datasets of every class, and in workers."""

import os

import numpy as np
import pytest
from meta_cases import Streamed, StreamedAndKnown, in_memory, meta_config, stream, words, write_hdf

from headrace.datasets import FromListDataset, HDFDataset, MetaDataset, MultiProcDataset, checks, init_dataset
from headrace.errors import ConfigError, HeadraceError, SourceError

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "_remarked", set())


# --- sub-datasets of every class ---


class Deaf(Streamed):
    """A stream that delivers what it likes."""

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        return super().init_seq_order(epoch)


SEQS = [f"seq-{i}" for i in range(7)]


def sub_datasets(tmp_path):
    return {
        "hdf": {"class": "HDFDataset", "files": write_hdf(tmp_path / "any.hdf", SEQS)},
        "static": {"class": "StaticDataset", "data": words(SEQS)},
        "map": in_memory(SEQS),
        "workers": {"class": "MultiProcDataset", "dataset": in_memory(SEQS), "num_workers": 1, "buffer_size": 8},
        "nested": meta_config(in_memory(SEQS, 3), in_memory(SEQS[::-1])),
        "streamed": {"class": StreamedAndKnown, "tags": SEQS},
    }


@pytest.mark.parametrize("kind", ["hdf", "static", "map", "workers", "nested", "streamed", "unknown"])
@pytest.mark.parametrize("role", ["control", "other"])
def test_a_sub_dataset_may_be_of_any_class(tmp_path, kind, role):
    config = {"class": Streamed, "tags": []} if kind == "unknown" else sub_datasets(tmp_path)[kind]
    control = config if role == "control" else in_memory(SEQS, seq_ordering="random")
    other = in_memory([*SEQS, "seq-7", "seq-8"][::-1], 9) if role == "control" else config
    dataset = init_dataset(meta_config(other, control))
    if role == "control" and kind == "unknown":
        with pytest.raises(ConfigError, match="does not tell its tags") as caught:
            dataset.init_seq_order(1)
        assert "seq_order_control_dataset" in str(caught.value)
        return
    rows = stream(dataset, 2)
    assert sorted(row[1] for row in rows) == sorted(dataset.get_all_tags())
    alone = init_dataset(config)
    alone.init_seq_order(2, seq_list=[row[1] for row in rows])
    key = "classes" if role == "control" else "data"
    assert [row[3][key] for row in rows] == [seq[key].tolist() for seq in alone.iterate_epoch()]
    if role == "control":
        assert [row[3]["data"] for row in rows] == [words([row[1]], 9)[0]["data"].tolist() for row in rows]
    for each in (dataset, alone):
        each.close()
    assert stream(dataset, 2) == rows  # what was released comes back
    dataset.close()


def test_recordings_can_be_joined_to_other_data():
    pytest.importorskip("soundfile")
    manifest = os.path.join(os.path.dirname(__file__), *[".."] * 2, "data", "spoken_numbers", "manifest.jsonl")
    audio = {"class": "AudioDataset", "manifest": manifest, "targets": {"classes": "word"}}
    tags = list(init_dataset(audio).get_all_tags())
    config = meta_config(in_memory(tags[::-1]), {**audio, "seq_ordering": "sorted", "partition_epoch": 50})
    rows = stream(init_dataset(config), 1)
    assert rows
    assert all(row[3]["data"] == words([row[1]])[0]["data"].tolist() for row in rows)


def test_a_sub_dataset_that_delivers_something_else_is_found_out():
    dataset = init_dataset(meta_config({"class": Deaf, "tags": SEQS[::-1]}, in_memory(SEQS)))
    with pytest.raises(SourceError, match="asked for the tag 'seq-0', and delivers 'seq-6'") as caught:
        stream(dataset, 1)
    assert "seq_list" in str(caught.value)
    dataset = init_dataset(meta_config({"class": Deaf, "tags": SEQS[:3]}, in_memory(SEQS)))
    with pytest.raises(SourceError, match="ends after 3 of 7 sequences"):
        stream(dataset, 1)


def test_a_data_set_object_that_has_grown_may_be_given_and_what_it_becomes_later_does_not_matter(tmp_path):
    control = HDFDataset(write_hdf(tmp_path / "a.hdf", ["a"]))
    control.add_file(write_hdf(tmp_path / "more.hdf", ["b"]))
    dataset = MetaDataset({"x": control, "y": in_memory(["c", "b", "a"])}, {"data": ("y", "data")}, None, "x")
    dataset.initialize()
    assert [row[1] for row in stream(dataset, 1)] == ["a", "b"]
    control.add_file(write_hdf(tmp_path / "b.hdf", ["c"]))
    assert [row[1] for row in stream(dataset, 1)] == ["a", "b"]
    dataset.close()


# --- in workers ---


def add_noise(features, rng):
    return {**features, "data": features["data"] + rng.normal(size=features["data"].shape).astype(np.float32)}


@pytest.mark.sample(5)
@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
@pytest.mark.parametrize(
    ("control", "own", "other"),
    [
        ("alignments", {"seq_ordering": "laplace:2", "partition_epoch": 2}, {}),
        ("alignments", {"seq_ordering": "random_sample"}, {"transform": add_noise}),
        (None, {"seq_ordering": "random_sample"}, {"transform": add_noise}),
        ("alignments", {"repeat_epoch": 2, "transform": add_noise}, {}),
        (None, {"repeat_epoch": 3}, {"transform": add_noise, "window": 3}),
    ],
)
def test_workers_do_not_change_the_stream(executor, control, own, other):
    tags = [f"t{i}" for i in range(17)]
    alignments, options = (in_memory(tags, **own), {}) if control else (in_memory(tags), own)
    config = meta_config(in_memory(tags[::-1], 5, **other), alignments, control, **options)
    inner = init_dataset(config)
    outer = MultiProcDataset(config, num_workers=2, buffer_size=9, executor=executor)
    outer.initialize()
    for epoch in (1, 2, 1):
        assert stream(outer, epoch) == stream(inner, epoch)
        assert list(outer.get_current_seq_order()) == list(inner.get_current_seq_order())
    outer.close()


@pytest.mark.parametrize("control", [None, "alignments"])
def test_repeated_sequences_draw_anew_and_the_same_each_time(control):
    tags = ["a", "b", "c"]
    repeat = {"repeat_epoch": 3}
    alignments, own = (in_memory(tags, **repeat), {}) if control else (in_memory(tags), repeat)
    dataset = init_dataset(meta_config(in_memory(tags, transform=add_noise), alignments, control, **own))
    rows = stream(dataset, 1)
    assert len({str(row[3]["data"]) for row in rows}) == 9
    assert stream(dataset, 1) == rows != stream(dataset, 2)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_dedicated_workers_deliver_each_sequence_once(executor):
    tags = [f"t{i}" for i in range(11)]
    config = meta_config(in_memory(tags), in_memory(tags[::-1], seq_ordering="random"))
    outer = MultiProcDataset(config, num_workers=3, buffer_size=4, sharding_method="dedicated", executor=executor)
    outer.initialize()
    rows = stream(outer, 1)
    assert sorted(row[1] for row in rows) == sorted(tags)
    assert all(row[3]["data"] == words([row[1]])[0]["data"].tolist() for row in rows)
    outer.close()


def test_frames_are_shuffled_in_the_same_groups_by_workers():
    tags = [f"t{i}" for i in range(11)]
    seqs = [{"data": np.arange(i % 3 * 2 + 2, dtype=np.float32)} for i in range(11)]
    shuffled = {"class": "MapDataset", "map_dataset": FromListDataset(seqs), "tags": tags, "shuffle_frames_of_nseqs": 3}
    config = meta_config(shuffled, in_memory(tags[::-1]))
    inner = init_dataset(config)
    assert inner.shuffle_frames_of_nseqs == 3
    outer = MultiProcDataset(config, num_workers=2, buffer_size=8, executor="thread")
    outer.initialize()
    assert stream(outer, 1) == stream(inner, 1)
    assert stream(inner, 1) != stream(
        init_dataset(
            {
                **config,
                "datasets": {
                    **config["datasets"],
                    "features": {name: value for name, value in shuffled.items() if name != "shuffle_frames_of_nseqs"},
                },
            }
        ),
        1,
    )
    outer.close()


def test_errors_of_the_tags_reach_the_trainer_before_a_worker_starts():
    config = meta_config(in_memory(["a"]), in_memory(["a", "b"]))
    outer = MultiProcDataset(config, num_workers=2, buffer_size=4)
    outer.initialize()
    with pytest.raises(HeadraceError, match="no tag 'b'"):
        outer.init_seq_order(1)
    assert outer.engine_report is None
    outer.close()

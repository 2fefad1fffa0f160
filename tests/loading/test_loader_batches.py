"""What batches hold, from which datasets, and what transform and collate do to them."""

import pickle
import random
from collections import namedtuple
from collections.abc import Mapping

import numpy as np
import pytest

from headrace import (
    ConfigError,
    HDFDataset,
    MapDataset,
    MetaDataset,
    ResumeError,
    SourceError,
    StaticDataset,
    TransformError,
)
from headrace.batching import Buckets, Chunks, FixedCount, FrameBudget, Pack
from headrace.datasets import CachedDataset2, MultiProcDataset
from headrace.datasets.seq import DatasetSeq
from headrace.engine import EngineOptions, Skipping, empty, get_worker_info
from headrace.errors import HeadraceError
from headrace.loading import DataLoader
from headrace.sources import HDFWriter, MemorySource

pytestmark = pytest.mark.usefixtures("warm_workers")


def test_a_batch_is_a_mapping_that_says_what_it_holds(seqs):
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        first, second = list(loader)[:2]
    assert list(first) == ["data", "classes"]
    assert first["data"].shape == (4, 15, 2)
    assert first.lengths["data"].tolist() == [1, 8, 15, 2]
    assert first.lengths["data"].dtype == np.int32
    assert first["data"][0, 1:].sum() == 0
    assert second.tags == ["seq-4", "seq-5", "seq-6", "seq-7"]
    assert (second.epoch, second.position, second.step, second.is_repeat) == (1, 1, 1, False)
    assert second.seq_idx.tolist() == second.corpus_idx.tolist() == [4, 5, 6, 7]
    assert (first.num_seqs, first.num_frames) == (4, 1 + 8 + 15 + 2)


def test_the_text_of_a_batch_is_one_line(seqs):
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        text = repr(next(iter(loader)))
    assert text == "<Batch 0 of epoch 1, 4 sequences, data: float32[4, 15, 2], classes: int32[4, 15]>"


def test_the_padding_share_is_what_is_no_frame_of_a_sequence(seqs):
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        batch = next(iter(loader))
    assert batch.padding_share == pytest.approx(1 - 26 / 60)


def test_an_unknown_key_names_the_valid_ones_and_is_a_key_error(seqs):
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        batch = next(iter(loader))
    with pytest.raises(SourceError, match=r"'dta'.*\n.*did you mean 'data'"):
        batch["dta"]
    assert "dta" not in batch
    assert batch.get("dta") is None


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_batch_survives_pickling_and_the_end_of_its_loader(seqs, executor):
    with DataLoader(StaticDataset(seqs), batching=Pack(30, 2), num_workers=1, executor=executor) as loader:
        batch = next(iter(loader))
    copy = pickle.loads(pickle.dumps(batch))
    assert copy["data"].tobytes() == batch["data"].tobytes()
    assert copy.segment_ids.tolist() == batch.segment_ids.tolist()
    assert (copy.tags, copy.position) == (batch.tags, batch.position)


def test_packed_rows_hold_each_sequence_where_the_ids_say(seqs):
    with DataLoader(StaticDataset(seqs), batching=Pack(40, 3)) as loader:
        for batch in loader:
            assert batch["data"].shape == (3, 40, 2)
            assert batch.segment_ids.shape == (3, 40)
            for number, (row, start) in enumerate(zip(batch.packing.rows, batch.packing.starts, strict=True)):
                length = batch.lengths["data"][number]
                part = slice(start, start + length)
                assert (batch["data"][row, part] == batch.corpus_idx[number]).all()
                assert batch.positions[row, part].tolist() == list(range(length))
                assert len(set(batch.segment_ids[row, part].tolist())) == 1


@pytest.mark.parametrize("options", [{}, {"window_seqs": 7}, {"engine_options": EngineOptions(on_error=Skipping(9))}])
def test_packed_batches_have_one_shape_also_where_sequences_are_longer_than_a_row(seqs, options):
    def fail_at_9(seq):
        if seq["data"][0, 0] == 9 and "engine_options" in options:
            raise ZeroDivisionError
        return seq

    with DataLoader(StaticDataset(seqs), batching=Pack(12, 4), transform=fail_at_9, **options) as loader:
        batches = list(loader)
    assert {batch["data"].shape for batch in batches} == {(4, 12, 2)}
    frames = sum(batch.num_frames for batch in batches)
    assert frames == sum(len(seq["data"]) for i, seq in enumerate(seqs) if i != 9 or "engine_options" not in options)


def test_arrays_are_padded_with_the_values_and_to_the_multiple_that_are_asked_for(seqs):
    options = {"pad_values": {"classes": -1}, "pad_multiple": 8}
    with DataLoader(StaticDataset(seqs), batching=FixedCount(3), **options) as loader:
        batch = next(iter(loader))
    assert batch["data"].shape == (3, 16, 2)
    assert set(batch["classes"][0, 1:].tolist()) == {-1}


def write_hdf(path, seqs, names):
    with HDFWriter(path, labels={"classes": [str(i) for i in range(20)]}, overwrite=True) as writer:
        for name, seq in zip(names, seqs, strict=True):
            writer.append(name, seq)


@pytest.fixture
def hdf_files(tmp_path, seqs, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    paths = [str(tmp_path / "a.hdf"), str(tmp_path / "b.hdf")]
    write_hdf(paths[0], seqs[:25], [f"a/{i}" for i in range(25)])
    write_hdf(paths[1], seqs[25:], [f"b/{i}" for i in range(15)])
    return paths


class Words:
    """A map-style dataset."""

    def __len__(self):
        return 12

    def __getitem__(self, i):
        return {"data": np.full((i % 4 + 1, 3), i, np.float32)}

    def get_seq_len(self, i):
        return i % 4 + 1


class Tones(CachedDataset2):
    """Sequences whose lengths depend on the epoch."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.num_outputs = {"data": (2, 2)}
        self.order = []

    def init_seq_order(self, epoch=None, seq_list=None, seq_order=None):
        super().init_seq_order(epoch, seq_list, seq_order)
        self.order = [] if epoch is None else self.get_seq_order_for_epoch(epoch, 12)
        self._num_seqs = len(self.order)
        return True

    def _collect_single_seq(self, seq_idx):
        number = int(self.order[seq_idx])
        rng = np.random.default_rng((self.epoch, number))
        return DatasetSeq(seq_idx, rng.random((rng.integers(1, 9), 2), np.float32), seq_tag=f"tone-{number}")


def make_meta(hdf_files, seqs):
    with HDFWriter(hdf_files[0] + ".more", overwrite=True) as writer:
        for i in reversed(range(25)):
            writer.append(f"a/{i}", {"data": np.full((3, 1), i, np.float32)})
    parts = {
        "speech": {"class": "HDFDataset", "files": hdf_files[:1]},
        "more": {"class": "HDFDataset", "files": [hdf_files[0] + ".more"]},
    }
    data_map = {"data": ("speech", "data"), "classes": ("speech", "classes"), "extra": ("more", "data")}
    return MetaDataset(datasets=parts, data_map=data_map, seq_order_control_dataset="speech")


@pytest.mark.sample(8)
@pytest.mark.parametrize("workers", [(0, "inline"), (2, "thread"), (1, "process")])
@pytest.mark.parametrize("kind", ["hdf", "config", "meta", "map", "tones", "multi_proc", "source"])
def test_every_kind_of_dataset_gives_what_its_epoch_gives(kind, workers, hdf_files, seqs):
    hdf = {"class": "HDFDataset", "files": hdf_files, "seq_ordering": "laplace:5", "partition_epoch": 2}
    datasets = {
        "hdf": lambda: HDFDataset(files=hdf_files, seq_ordering="random", partition_epoch=2),
        "config": lambda: hdf,
        "meta": lambda: make_meta(hdf_files, seqs),
        "map": lambda: MapDataset(Words(), seq_ordering="sorted"),
        "tones": lambda: Tones(seq_ordering="random"),
        "multi_proc": lambda: MultiProcDataset(hdf, num_workers=2, buffer_size=4),
        "source": lambda: MemorySource(seqs),
    }
    dataset = datasets[kind]()
    reference = {"config": lambda: HDFDataset(files=hdf_files, seq_ordering="laplace:5", partition_epoch=2)}.get(kind)
    reference = dataset if reference is None else reference()
    if kind == "source":
        reference = StaticDataset(seqs)
    for batching in (FixedCount(3), Buckets(FrameBudget(40), num_buckets=2)):
        with DataLoader(dataset, batching=batching, num_workers=workers[0], executor=workers[1]) as loader:
            for epoch in (1, 2):
                if hasattr(reference, "initialize"):
                    reference.initialize()
                expected = {seq.tag: {key: seq[key] for key in seq.keys()} for seq in reference.epoch(epoch)}  # noqa: SIM118
                loader.set_epoch(epoch)
                found = {}
                for batch in loader:
                    for number, tag in enumerate(batch.tags):
                        found[tag] = {key: batch[key][number][: batch.lengths[key][number]] for key in batch}
                assert found.keys() == expected.keys()
                for tag, seq in found.items():
                    assert seq.keys() == expected[tag].keys()
                    for key, value in seq.items():
                        assert value.tobytes() == expected[tag][key].tobytes()
    reference.close()


@pytest.mark.parametrize("kind", ["hdf", "meta", "map", "tones", "multi_proc"])
def test_every_kind_of_dataset_can_be_resumed_in_a_new_process(kind, hdf_files, seqs):
    hdf = {"class": "HDFDataset", "files": hdf_files, "seq_ordering": "random"}
    datasets = {
        "hdf": lambda: HDFDataset(files=hdf_files, seq_ordering="random"),
        "meta": lambda: make_meta(hdf_files, seqs),
        "map": lambda: MapDataset(Words(), seq_ordering="random"),
        "tones": lambda: Tones(seq_ordering="random"),
        "multi_proc": lambda: MultiProcDataset(hdf, num_workers=2, buffer_size=4),
    }
    batching = Buckets(FrameBudget(40), num_buckets=2)
    with datasets[kind]() as dataset, DataLoader(dataset, batching=batching) as loader:
        tags = [batch.tags for batch in loader]
        loader.set_epoch(1)
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        iterator.close()
    with datasets[kind]() as dataset, DataLoader(dataset, batching=batching) as loader:
        loader.load_state_dict(state)
        assert [batch.tags for batch in loader] == tags[1:]
    if kind in ("hdf", "meta"):
        write_hdf(hdf_files[0], [*seqs[:24], seqs[0]], [f"a/{i}" for i in range(25)])  # one sequence has another length
        with (
            datasets[kind]() as dataset,
            DataLoader(dataset, batching=batching) as loader,
            pytest.raises(ResumeError, match="another data"),
        ):
            loader.load_state_dict(state)


def test_a_dataset_that_was_given_stays_usable_and_keeps_its_order(seqs):
    dataset = StaticDataset(seqs)
    dataset.seq_ordering = "reverse"  # after it was built
    with DataLoader(dataset, batching=FixedCount(1)) as loader:
        assert [batch.tags[0] for batch in loader] == [f"seq-{i}" for i in reversed(range(40))]
    assert next(iter(dataset.epoch(1))).tag == "seq-39"


def test_two_loaders_over_one_dataset_do_not_disturb_each_other(seqs):
    dataset = StaticDataset(seqs, seq_ordering="random")
    with DataLoader(dataset, batching=FixedCount(4)) as alone:
        expected = [[batch.tags for batch in epoch] for epoch in alone.epochs(1, 2)]
    with DataLoader(dataset, batching=FixedCount(4)) as one, DataLoader(dataset, batching=FixedCount(4)) as two:
        two.set_epoch(2)
        pairs = [(a.tags, b.tags) for a, b in zip(one, two, strict=True)]
    assert pairs == list(zip(*expected, strict=True))


# --- transforms ---


def test_a_transform_sees_each_sequence_and_may_change_its_keys(seqs):
    def transform(seq):
        return {"twice": np.repeat(seq["data"], 2, axis=0), "mean": seq["data"].mean()}

    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=transform) as loader:
        batch = next(iter(loader))
    assert list(batch) == ["twice", "mean"]
    assert batch.lengths["twice"].tolist() == [2, 16, 30, 4]
    assert batch["mean"].tolist() == [0, 1, 2, 3]
    assert "mean" not in batch.lengths


def test_noise_depends_on_seed_epoch_and_sequence_and_not_on_the_batching(seqs):
    def noisy(seq, rng):
        return {"data": rng.random((1, 3))}

    def noise_of(batching, seed, epoch, **options):
        with DataLoader(StaticDataset(seqs), batching=batching, seed=seed, transform=noisy, **options) as loader:
            loader.set_epoch(epoch)
            return {tag: row.tobytes() for batch in loader for tag, row in zip(batch.tags, batch["data"], strict=True)}

    assert noise_of(FixedCount(3), 1, 1) == noise_of(Buckets(FrameBudget(60)), 1, 1, num_workers=2, executor="thread")
    assert len(set(noise_of(FixedCount(3), 1, 1).values())) == 40
    assert noise_of(FixedCount(3), 1, 2).items().isdisjoint(noise_of(FixedCount(3), 2, 1).items())


def test_repeated_sequences_get_noise_of_their_own(seqs):
    def noisy(seq, rng):
        return {"data": rng.random((1, 3))}

    dataset = StaticDataset(seqs[:5], repeat_epoch=3)
    with DataLoader(dataset, batching=FixedCount(2), transform=noisy) as loader:
        rows = [row.tobytes() for batch in loader for row in batch["data"]]
    assert len(set(rows)) == len(rows) == 15


def test_a_transform_may_write_into_overlapping_chunks(seqs):
    def scale(seq):
        seq["data"] *= 2
        return seq

    batching = Chunks(FixedCount(5), frames=4, step=2)
    with DataLoader(StaticDataset(seqs), batching=batching, transform=scale) as loader:
        for batch in loader:
            for number, corpus_idx in enumerate(batch.corpus_idx):
                assert (batch["data"][number, : batch.lengths["data"][number]] == 2 * corpus_idx).all()


def test_a_transform_that_returns_no_mapping_is_named_with_the_sequence(seqs):
    with (
        DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=lambda seq: seq["data"]) as loader,
        pytest.raises(TransformError, match=r"got ndarray\n.*'seq-0', epoch 1"),
    ):
        next(iter(loader))


def test_a_dtype_that_changes_in_mid_epoch_is_an_error(seqs):
    def transform(seq):
        return {"data": seq["data"].astype(np.float64 if seq["data"][0, 0] >= 8 else np.float32)}

    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=transform) as loader:
        iterator = iter(loader)
        next(iterator), next(iterator)
        with pytest.raises(
            TransformError, match=r"float32 with 3 axes before, and float64 with 3 axes now\n.*batch 2 "
        ):
            next(iterator)


def test_a_transform_of_the_dataset_that_changes_lengths_cannot_be_cut_by_the_plan(seqs):
    dataset = StaticDataset(seqs, transform=lambda seq: {key: value[::2] for key, value in seq.items()})
    with (
        DataLoader(dataset, batching=Chunks(FixedCount(2), frames=4)) as loader,
        pytest.raises(SourceError, match=r"4 frames, but 8 in the index"),
    ):
        list(loader)


def test_the_error_of_a_transform_keeps_its_type_and_names_the_sequence(seqs):
    def fail(seq):
        if seq["data"][0, 0] == 5:
            raise ZeroDivisionError("five")
        return seq

    with (
        DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=fail, num_workers=1) as loader,
        pytest.raises(ZeroDivisionError) as info,
    ):
        list(loader)
    assert any("seq-5" in note for note in info.value.__notes__)


def test_a_sequence_that_fails_can_be_left_out_of_its_batch(seqs):
    def fail(seq):
        if seq["data"][0, 0] == 5:
            raise ZeroDivisionError("five")
        return seq

    options = EngineOptions(on_error=Skipping(budget=2))
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=fail, engine_options=options) as loader:
        batches = list(loader)
        assert loader.report.num_skipped == 1
    assert batches[1].tags == ["seq-4", "seq-6", "seq-7"]
    assert batches[1].seq_idx.tolist() == [4, 6, 7]
    assert batches[1]["data"][:, 0, 0].tolist() == [4, 6, 7]
    assert len(batches) == 10


@pytest.mark.parametrize("batching", [Pack(30, 2), Chunks(FixedCount(3), frames=5)])
def test_what_is_left_out_leaves_no_hole_in_packed_or_cut_batches(seqs, batching):
    def fail(seq):
        if seq["data"][0, 0] % 3 == 0:
            raise ZeroDivisionError
        return seq

    options = EngineOptions(on_error=Skipping(budget=1000))
    with DataLoader(StaticDataset(seqs), batching=batching, transform=fail, engine_options=options) as loader:
        batches = list(loader)
    assert {int(i) for batch in batches for i in batch.corpus_idx} == {i for i in range(40) if i % 3}
    for batch in batches:
        assert batch.num_seqs == len(batch.tags) == len(batch.lengths["data"]) == len(batch.corpus_idx)


def test_a_batch_of_which_nothing_can_be_read_is_passed_over_by_one_rank_alone_only(seqs):
    def fail(seq):
        if 4 <= seq["data"][0, 0] < 8:
            raise ZeroDivisionError
        return seq

    options = EngineOptions(on_error=Skipping(budget=9))
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), transform=fail, engine_options=options) as loader:
        assert [batch.position for batch in loader] == [0, 2, 3, 4, 5, 6, 7, 8, 9]
    world = {"rank": 1, "world_size": 2}
    with (
        DataLoader(
            StaticDataset(seqs), batching=FixedCount(4), transform=fail, engine_options=options, **world
        ) as loader,
        pytest.raises(HeadraceError, match=r"(?s)one step less.*rank 1 of 2"),
    ):
        list(loader)


# --- collate ---


def test_the_result_of_a_collate_of_ones_own_is_delivered_as_it_is(seqs):
    with DataLoader(
        StaticDataset(seqs), batching=FixedCount(4), collate=lambda seqs: [len(seq["data"]) for seq in seqs]
    ) as loader:
        assert next(iter(loader)) == [1, 8, 15, 2]
        state = loader.state_dict()
    assert state["position"] == 1


def test_a_collate_that_returns_ragged_arrays_is_told_so(seqs):
    def collate(seqs):
        ragged = np.empty(len(seqs), object)
        ragged[:] = [seq["data"] for seq in seqs]
        return {"x": ragged}

    with (
        DataLoader(StaticDataset(seqs), batching=FixedCount(4), collate=collate) as loader,
        pytest.raises(TransformError, match=r"array of Python objects \['x'\]"),
    ):
        next(iter(loader))


def test_the_error_of_a_collate_names_the_batch(seqs):
    with (
        DataLoader(StaticDataset(seqs), batching=FixedCount(2), collate=lambda seqs: seqs[7]) as loader,
        pytest.raises(IndexError) as info,
    ):
        next(iter(loader))
    assert any("batch 0 of epoch 1: ['seq-0', 'seq-1']" in note for note in info.value.__notes__)


def test_batches_are_made_by_the_workers(seqs):
    def who(seqs):
        info = get_worker_info()
        return info.executor, info.num_workers

    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), num_workers=2, collate=who) as loader:
        assert set(loader) == {("process", 2)}


# --- lists, and objects of other libraries ---

Pair = namedtuple("Pair", "x y")


def test_a_list_of_dicts_becomes_padded_batches():
    items = [{"data": [1.0] * n, "speaker": n} for n in (2, 5, 3)]
    with DataLoader(items, batch_size=2) as loader:
        first, second = loader
    assert first["data"].shape == (2, 5)
    assert first["speaker"].tolist() == [2, 5]
    assert second["data"].tolist() == [[1, 1, 1]]


def test_dicts_with_texts_become_batches_too():
    items = [{"data": [1.0] * n, "text": f"{n} frames"} for n in (2, 5, 3)]
    with DataLoader(items, batch_size=2, num_workers=1) as loader:
        first, second = loader
    assert first["data"].shape == (2, 5)
    assert first.lengths["data"].tolist() == [2, 5]
    assert first["text"] == ["2 frames", "5 frames"]
    assert second.tags == ["seq-2"]


def test_batches_are_compared_by_identity_and_can_be_kept_in_sets(seqs):
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        batches = list(loader)
    assert len(set(batches)) == 10
    assert batches.index(batches[3]) == 3


def test_items_of_other_kinds_keep_their_structure():
    items = [(np.full(3, i), i, f"word {i}", Pair(i, -i)) for i in range(5)]
    with DataLoader(items, batch_size=2) as loader:
        arrays, numbers, words, pair = next(iter(loader))
    assert arrays.tolist() == [[0] * 3, [1] * 3]
    assert numbers.tolist() == [0, 1]
    assert words == ["word 0", "word 1"]
    assert type(pair) is Pair
    assert pair.y.tolist() == [0, -1]


class Alone:
    """Items of all kinds, one of which is the memory of the one before, and one fails."""

    def __init__(self) -> None:
        self.reused = np.zeros(4)

    def __len__(self):
        return 24

    def __getitem__(self, number):
        plain = np.full((2, 3), number + random.random() + np.random.rand(), np.float32)
        if number == 23:
            raise KeyError("the last item")
        if number >= 20:
            self.reused[:] = number
            return self.reused
        fixed = np.full((3, 2), number)
        fixed.flags.writeable = False
        in_place = empty((5000,), np.int64)
        in_place[:] = number
        kinds = [
            plain, plain.T, plain[:, ::2], plain[0, 0], plain[:0], np.array(number), np.array(number, ">i4"), fixed,
            np.arange(40_000), in_place, in_place[7:], np.array([f"text {number}"]), np.zeros(3, bool), number,
            (plain, number), {"data": plain, "text": "a"}, f"text {number}", np.zeros(2, [("a", "i4")]),
            np.float16([number, np.nan]), np.ma.masked_array([1, 2], [0, 1]),
        ]  # fmt: skip
        return kinds[number]


def outcomes_of(loader):
    """Return each batch as text, with types and layouts; and each error with its item."""
    found, batches = [], iter(loader)
    while True:
        try:
            value = next(batches)
        except StopIteration:
            return found
        except Exception as error:  # noqa: BLE001 - compared
            found.append(
                (type(error), str(error), [note.split(", ticket")[0] for note in error.__notes__ if "(item" in note])
            )
            continue
        arrays = value if isinstance(value, tuple) else [value]
        arrays = list(value.arrays.values()) if hasattr(value, "arrays") else arrays
        texts = [
            (type(one), one.dtype, one.shape, one.flags.c_contiguous, one.tolist())
            if isinstance(one, np.ndarray)
            else one
            for one in arrays
        ]
        found.append((type(value), repr(texts)))


def test_an_item_that_is_a_batch_alone_comes_from_a_worker_process_as_it_is_made_here():
    by_executor = {}
    for executor in ("inline", "process"):
        with DataLoader(Alone(), batch_size=1, num_workers=2, executor=executor, seed=3) as loader:
            by_executor[executor] = outcomes_of(loader)
    assert len(by_executor["inline"]) == 24
    assert by_executor["process"] == by_executor["inline"]
    assert by_executor["process"][-1][0] is KeyError


class Kinds:
    """Items of several kinds, by their indices; some cannot be read, and one is no row of its batch."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 150

    def __getitem__(self, i):
        if i in (5, 80, 100, 101, 102, 103):
            raise KeyError(f"no item {i}")
        small, large = np.full((2, 3), i, np.float32), np.full((40, 120), i, np.int32)
        return {
            "dict": {"image": small, "label": i, "text": f"text {i}"},
            "tuple": (small, i, large),
            "array": large,
            "text": f"text {i}",
        }[self.kind]


def written_out(value):
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {key: written_out(part) for key, part in value.items()}
    return [written_out(part) for part in value] if isinstance(value, tuple | list) else value


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("kind", "num_workers"), [("dict", 0), ("dict", 2), ("tuple", 0), ("array", 0), ("array", 2), ("text", 0)]
)
def test_items_come_out_as_they_do_when_something_is_done_to_each(kind, num_workers):
    found = []
    for transform in (None, lambda item: item):
        options = EngineOptions(on_error=Skipping(10))
        with DataLoader(
            Kinds(kind),
            batch_size=4,
            shuffle=False,
            num_workers=num_workers,
            transform=transform,
            engine_options=options,
        ) as loader:
            batches = [(type(batch), getattr(batch, "tags", None), written_out(batch)) for batch in loader]
        found.append(batches)
    assert len(found[0]) == 37  # of one batch, no item could be read
    assert found[0] == found[1]


def test_items_of_different_shapes_are_refused_with_what_to_do():
    with (
        DataLoader([(np.zeros(2),), (np.zeros(3),)], batch_size=2) as loader,
        pytest.raises(TransformError, match=r"different shapes: .*\n.*collate="),
    ):
        next(iter(loader))


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_torch_style_arguments_do_what_they_do_there(executor):
    items = list(range(10))
    options = {"collate": sum, "shuffle": True, "drop_last": True, "num_workers": 2}
    with DataLoader(items, batch_size=4, executor=executor, **options) as loader:
        sums = [list(loader), list(loader)]
        assert len(loader) == 2
    assert [len(part) for part in sums] == [2, 2]
    assert sums[0] != sums[1]


def test_without_shuffle_a_list_keeps_its_order():
    with DataLoader(list("abcdefg"), batch_size=3) as loader:
        assert list(loader) == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


def test_shuffle_depends_on_seed_and_epoch_alone():
    def epochs(seed):
        with DataLoader(list(range(50)), batch_size=5, shuffle=True, seed=seed, collate=list) as loader:
            return [list(loader), list(loader)]

    assert epochs(1) == epochs(1)
    assert epochs(1)[0] != epochs(1)[1] != epochs(2)[1]
    assert sorted(i for batch in epochs(1)[1] for i in batch) == list(range(50))


def test_shuffle_gives_an_order_to_a_dataset_without_one_and_is_refused_by_another(seqs):
    dataset = StaticDataset(seqs)
    with DataLoader(dataset, batch_size=4, shuffle=True) as loader:
        assert next(iter(loader)).tags != ["seq-0", "seq-1", "seq-2", "seq-3"]
    assert dataset.seq_ordering == "default"
    with pytest.raises(ConfigError, match=r"order of its own: 'random'"):
        DataLoader(StaticDataset(seqs, seq_ordering="random"), batch_size=4, shuffle=True)


class EveryOther:
    """A sampler that has to be told the epoch."""

    def __init__(self):
        self.asked = []

    def set_epoch(self, epoch):
        self.asked.append(epoch)

    def __iter__(self):
        return iter(range(self.asked[-1], 10, 2))

    def __len__(self):
        return 5


def test_a_sampler_says_the_order_of_each_epoch():
    sampler = EveryOther()
    with DataLoader(list(range(10)), batch_size=2, sampler=sampler, collate=list) as loader:
        assert list(loader) == [[1, 3], [5, 7], [9]]
        assert list(loader) == [[2, 4], [6, 8]]
    assert sampler.asked == [1, 2]


def test_worker_init_gets_the_number_of_the_worker(seqs):
    def remember(info):
        import os

        os.environ["HEADRACE_TEST_WORKER"] = str(info.worker_idx)

    def read(seqs):
        import os

        return os.environ["HEADRACE_TEST_WORKER"], str(get_worker_info().worker_idx)

    options = {"worker_init": remember, "collate": read, "num_workers": 2}
    with DataLoader(StaticDataset(seqs), batch_size=2, **options) as loader:
        assert {name == idx for name, idx in loader} == {True}


def same_seq(seq, **_):
    return seq


def same_stream(seqs, **_):
    yield from seqs


@pytest.mark.parametrize(
    ("wrap", "num_all"),
    [
        (lambda inner: inner, 10),
        (lambda inner: {"class": "MultiEpochDataset", "dataset": inner, "multi_epoch": 2}, 10),
        (lambda inner: {"class": "ConcatDataset", "datasets": [inner, {**inner, "seq_list_filter_file": None}]}, 20),
        (lambda inner: {"class": "PostprocessingDataset", "dataset": inner, "map_seq_stream": same_stream}, 10),
    ],
    ids=["itself", "several epochs", "a part", "a stream"],
)
def test_what_a_filter_leaves_out_is_logged_once_and_counted(wrap, num_all, tmp_path, caplog):
    (tmp_path / "kept.txt").write_text("seq-1\nseq-3\n")
    data = [{"data": np.full(3, number)} for number in range(10)]
    config = {"class": "StaticDataset", "data": data, "seq_list_filter_file": tmp_path / "kept.txt"}
    with caplog.at_level("INFO", "headrace.loading"), DataLoader(wrap(config), batch_size=2) as loader:
        for _ in range(2):
            list(loader)
        assert f"8 of {num_all} sequences are left out" in loader.explain()
    assert caplog.text.count(f"a filter leaves out 8 of {num_all} sequences") == 1


def test_an_empty_list_has_the_dtype_of_the_other_rows():
    rows = [{"x": [], "text": "a"}, {"x": [1, 2], "text": "b"}, {"x": [], "text": "c"}]
    with DataLoader(rows, batch_size=3, num_workers=0) as loader:
        (batch,) = loader
    assert batch["x"].dtype == np.int64
    assert batch["x"].tolist() == [[0, 0], [1, 2], [0, 0]]


def test_what_a_look_at_the_first_batch_leaves_out_is_said_once(caplog):
    data = [{"data": np.full((2, 1), i, np.float32)} for i in range(12)]
    with caplog.at_level("INFO", "headrace.loading"), DataLoader(StaticDataset(data), batch_size=3) as loader:
        assert "left:" not in loader.explain()
        next(iter(loader))
        for _ in range(2):
            assert len([batch.epoch for batch in loader]) == 4
            assert "left:     epoch 1 before batch 1: the rest of it did not come" in loader.explain()
    assert [record.message for record in caplog.records if "was left" in record.message] == [
        "epoch 1 was left before batch 1: the rest of it does not come (logged once; see set_epoch)"
    ]


def test_who_begins_an_epoch_again_after_a_look_is_told_nothing(caplog):
    data = [{"data": np.full((2, 1), i, np.float32)} for i in range(12)]
    with caplog.at_level("INFO", "headrace.loading"), DataLoader(StaticDataset(data), batch_size=3) as loader:
        next(iter(loader))
        loader.set_epoch(1)
        assert [batch.epoch for batch in loader] == [1] * 4
        assert "left:" not in loader.explain()
    assert not [record for record in caplog.records if "was left" in record.message]

"""Ranks that agree on their steps: what is refused, what is read ahead, and what becomes of errors."""

import numpy as np
import pytest

from headrace import ConfigError, DistributeFilesDataset, HeadraceError, StaticDataset
from headrace.batching import FixedCount
from headrace.engine import EngineOptions, Skipping
from headrace.loading import DataLoader
from headrace.sources import HDFWriter


class Counted:
    """A stream that tells how far it was read."""

    def __init__(self, num):
        self.num, self.num_read = num, 0

    def __iter__(self):
        for i in range(self.num):
            self.num_read = i + 1
            yield {"data": np.full(3, i)}


def always(flag):
    return flag


def open_loader(stream, **options):
    options = {"agree": always, "agree_every": 5, "batching": FixedCount(2), "window_seqs": 2, **options}
    return DataLoader(stream, **options)


def test_no_more_is_read_ahead_than_the_steps_that_are_asked_for():
    stream = Counted(1000)
    with open_loader(stream) as loader:
        batches = iter(loader)
        next(batches)
        assert 10 <= stream.num_read <= 14
        for _ in range(20):
            next(batches)
        assert 50 <= stream.num_read <= 54


def test_the_ranks_ask_each_other_once_in_so_many_steps():
    asked = []
    with open_loader(Counted(40), agree=lambda flag: asked.append(flag) or flag) as loader:
        at = [len(asked) for _ in loader]
    assert at == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5
    assert asked == [True] * 4 + [False] * 4  # a block of 5, of 3, of 2, of 1
    assert "steps agreed on in blocks of 5" in loader.explain()
    with pytest.raises(TypeError):
        len(loader)


def test_the_epoch_ends_where_another_rank_has_no_more(caplog):
    caplog.set_level("INFO", "headrace.loading")
    with open_loader(Counted(40), agree=lambda flag: flag and False) as loader:
        assert list(loader) == []
        assert loader.state_dict()["epoch"] == 2
        assert list(loader) == []
        assert loader.state_dict()["epoch"] == 3
    assert "this one leaves out 5 or more" in caplog.text


def test_a_rank_that_has_nothing_to_repeat_says_so():
    with (
        open_loader(Counted(0), agree=lambda _: False, remainder="pad") as loader,
        pytest.raises(HeadraceError, match="no batch to repeat"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"agree": None}, "must be given together"),
        ({"agree_every": None}, "must be given together"),
        ({"agree_every": 0}, "agree_every must be at least 1"),
        ({"agree": 3}, "agree must be a function"),
        ({"steps_per_epoch": 3}, "steps_per_epoch and agree both"),
        ({"remainder": "keep"}, "keep.* and agree both"),
    ],
)
def test_what_contradicts_an_agreement_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        open_loader(Counted(9), **options)


def test_an_answer_that_is_neither_true_nor_false_is_refused():
    with open_loader(Counted(9), agree=lambda _: 1) as loader, pytest.raises(ConfigError, match="agree must return"):
        list(loader)


def test_ranks_that_know_their_steps_need_not_agree():
    dataset = StaticDataset([{"data": np.zeros(3)}] * 9)
    with pytest.raises(ConfigError, match="here they do"):
        open_loader(dataset, rank=0, world_size=2)


@pytest.mark.parametrize("remainder", ["drop", "pad"])
def test_a_known_order_that_shares_itself_out_is_agreed_on_too(remainder):
    seqs = [{"data": np.full(3, i)} for i in range(21)]
    options = {"batching": FixedCount(2), "remainder": remainder}

    def open_share(shard, **more):
        return DataLoader(StaticDataset(seqs, _num_shards=2, _shard_index=shard), **options, **more)

    with pytest.raises(ConfigError, match="agree="):
        open_share(0)
    found = []
    for shard in (0, 1):
        with open_share(shard, agree=always, agree_every=4) as loader:
            found += [number for batch in loader for number in batch["data"][:, 0].tolist()]
            with pytest.raises(TypeError, match="the ranks agree on it"):
                len(loader)
    assert sorted(found) == list(range(21))


@pytest.mark.parametrize("options", [{"agree_every": None, "agree": None, "steps_per_epoch": 3}, {}])
def test_a_batch_that_was_left_out_is_noticed_where_ranks_share_a_stream(tmp_path, options):
    for number in range(4):
        with HDFWriter(tmp_path / f"{number}.hdf") as writer:
            for place in range(6):
                writer.append(f"{number}-{place}", {"data": np.full((2, 1), place, np.float32)})
    dataset = DistributeFilesDataset(
        files=[str(tmp_path / f"{number}.hdf") for number in range(4)],
        get_sub_epoch_dataset=lambda files: {"class": "HDFDataset", "files": files},
        partition_epoch=1,
        distrib_shard_files=True,
        _num_shards=2,
        _shard_index=0,
        use_worker_proc=False,
    )

    def collate(seqs):
        if any(seq["data"][0, 0] == 3 for seq in seqs):
            raise ValueError("no batch of it")
        return len(seqs)

    policy = EngineOptions(on_error=Skipping())
    with (
        open_loader(dataset, collate=collate, engine_options=policy, **options) as loader,
        pytest.raises(HeadraceError, match="one step less than the others"),
    ):
        list(loader)

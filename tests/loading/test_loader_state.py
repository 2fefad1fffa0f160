"""Saving, loading and refusing states; which epoch comes next; what ranks share."""

import gc
import json
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import ConfigError, HeadraceError, MapDataset, ResumeError, StaticDataset
from headrace.batching import Buckets, FixedCount, FrameBudget, Steps
from headrace.loading import DataLoader

BUDGET = FrameBudget(40)


SEQS = [{"data": np.full((7 * i % 20 + 1, 2), i, np.float32)} for i in range(40)]


def open_loader(seqs, ordering="random", **options):
    options = {"batching": BUDGET, "window_seqs": 12, **options}
    return DataLoader(StaticDataset(seqs, seq_ordering=ordering), **options)


def saved_after(seqs, num_steps, **options):
    with open_loader(seqs, **options) as loader:
        for _ in zip(range(num_steps), loader, strict=False):
            pass
        return loader.state_dict()


def test_a_state_is_small_json_data(seqs):
    state = saved_after(seqs, 3)
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 1024
    assert set(state) == {"format", "epoch", "position", "window", "digests", "digest"}
    assert set(state["digests"]) == {"data", "order", "batching", "seed", "user"}


def test_the_position_is_what_was_consumed_and_not_what_was_prefetched(seqs):
    with open_loader(seqs, num_workers=2, executor="thread") as loader:
        iterator = iter(loader)
        assert loader.state_dict()["position"] == 0
        next(iterator)
        assert loader.state_dict()["position"] == 1


def test_a_new_loader_is_at_the_start_of_epoch_1(seqs):
    with open_loader(seqs) as loader:
        state = loader.state_dict()
    assert (state["epoch"], state["position"], state["window"]) == (1, 0, [0, 0])


def test_at_the_end_of_an_epoch_the_state_is_the_start_of_the_next(seqs):
    with open_loader(seqs) as loader:
        batches = list(loader)
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (2, 0)
    with open_loader(seqs) as loader:
        iterator = iter(loader)
        for _ in batches:
            next(iterator)
        state = loader.state_dict()  # after the last batch, before the loop has seen the end
        assert (state["epoch"], state["position"]) == (1, len(batches))
    with open_loader(seqs) as loader:
        loader.load_state_dict(state)
        assert list(loader) == []
        assert next(iter(loader)).epoch == 2


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("data", {"seqs": [{"data": np.zeros((3, 2), np.float32), "classes": np.zeros(3, np.int32)}] * 40}),
        ("order", {"ordering": "laplace:2"}),
        ("batching", {"batching": FrameBudget(41)}),
        ("batching", {"window_seqs": 13}),
        ("batching", {"batching": FrameBudget(40, data_key="classes")}),
        ("seed", {"seed": 1}),
        (r"user code \(recipe_version\)", {"recipe_version": "v2"}),
    ],
)
def test_a_state_of_another_recipe_is_refused_and_the_part_is_named(seqs, part, change):
    state = saved_after(seqs, 2)
    with open_loader(**{"seqs": seqs, **change}) as loader, pytest.raises(ResumeError, match=f"another {part}: "):
        loader.load_state_dict(state)


@given(st.sets(st.sampled_from(["data", "order", "batching", "seed", "user"]), min_size=1))
@settings(max_examples=15)
def test_all_parts_that_differ_are_named(parts):
    others = {
        "data": {"seqs": SEQS[:30]},
        "order": {"ordering": "laplace:2"},
        "batching": {"batching": FrameBudget(41)},
        "seed": {"seed": 1},
        "user": {"recipe_version": "v2"},
    }
    state = saved_after(SEQS, 2)
    changed = {"seqs": SEQS} | {name: value for part in parts for name, value in others[part].items()}
    with open_loader(**changed) as loader, pytest.raises(ResumeError) as caught:
        loader.load_state_dict(state)
    named = {part for part in others if f"another {'user code' if part == 'user' else part}" in str(caught.value)}
    assert named == parts


@pytest.mark.parametrize(
    "options",
    [
        {"partition_epoch": 2},
        {"fixed_random_seed": 3},
        {"random_seed_offset": 3},
        {"repeat_epoch": 2},
        {"unique_seq_tags": True},
    ],
)
def test_every_option_of_the_order_counts(seqs, options):
    state = saved_after(seqs, 2)
    dataset = StaticDataset(seqs, seq_ordering="random", **options)
    with DataLoader(dataset, batching=BUDGET, window_seqs=12) as loader, pytest.raises(ResumeError, match=r"order"):
        loader.load_state_dict(state)


def test_workers_executor_and_ranks_may_be_others(seqs):
    state = saved_after(seqs, 2)
    options = {"num_workers": 2, "executor": "thread", "rank": 1, "world_size": 3}
    with open_loader(seqs, **options) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).position == 3


def test_what_a_function_orders_by_counts_and_not_the_function(seqs):
    state = saved_after(seqs, 2, ordering=lambda epoch: f"random:seed={epoch}")
    with open_loader(seqs, ordering=lambda epoch: f"random:seed={epoch}") as loader:
        loader.load_state_dict(state)
    with (
        open_loader(seqs, ordering=lambda epoch: f"random:seed={epoch + 1}") as loader,
        pytest.raises(ResumeError, match=r"order"),
    ):
        loader.load_state_dict(state)


class Reversed:
    """A dataset with an order of its own."""

    def __init__(self, shift=0):
        self.shift = shift

    def __len__(self):
        return 9

    def __getitem__(self, i):
        return {"data": np.zeros((2, 1), np.float32)}

    def get_seq_order(self, epoch):
        return [(i + epoch + self.shift) % 9 for i in range(9)]


def test_an_order_of_the_users_own_is_compared_by_its_content():
    def loader_of(shift):
        return DataLoader(MapDataset(Reversed(shift)), batching=FixedCount(2))

    with loader_of(0) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with loader_of(0) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).corpus_idx.tolist() == [3, 4]
    with loader_of(1) as loader, pytest.raises(ResumeError, match=r"another order"):
        loader.load_state_dict(state)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"position": -1},
        {"position": "3"},
        {"window": [1, 99]},
        {"window": 7},
        {"epoch": None},
        {"more": 1},
        {"digests": {"data": 1}},
    ],
)
def test_a_damaged_state_is_refused(seqs, change):
    state = {**saved_after(seqs, 2), **change}
    with open_loader(seqs) as loader, pytest.raises(ResumeError):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, [], {}, {"format": 1}, "state"])
def test_what_is_no_state_is_refused(seqs, state):
    with open_loader(seqs) as loader, pytest.raises(ResumeError, match=r"not the state of a loader"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("change", [{"position": 10**6}, {"position": 10**6, "window": [10**4, 3]}])
def test_a_position_beyond_the_epoch_is_refused_when_it_is_looked_up(seqs, change):
    state = {**saved_after(seqs, 2), **change, "digest": None}  # as in a state of an older version
    with open_loader(seqs) as loader:
        loader.load_state_dict(state)
        with pytest.raises(ResumeError, match=r"as it was saved"):
            iter(loader)


def test_a_false_window_is_found_when_all_batches_are_counted(seqs):
    state = saved_after(seqs, 8)
    state["window"] = [state["window"][0], state["window"][1] - 1]
    del state["digest"]  # as in a state of an older version
    with open_loader(seqs) as loader:
        loader.load_state_dict(state)
        iterator = iter(loader)
        with pytest.raises(ResumeError, match=r"which is wrong"):
            len(loader)
        iterator.close()


def test_a_state_that_comes_too_late_is_refused(seqs):
    state = saved_after(seqs, 2)
    with open_loader(seqs) as loader:
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(ResumeError, match=r"too late"):
            loader.load_state_dict(state)
        del iterator
        gc.collect()
        loader.load_state_dict(state)
        assert next(iter(loader)).position == 2


def test_a_resume_plans_one_window_and_the_start_as_well(seqs):
    with open_loader(seqs * 50, batching=Buckets(FrameBudget(40), num_buckets=4)) as loader:
        iterator = iter(loader)
        next(iterator)
        assert loader._runs.plan_of(1).num_planned <= 2
        for batch in iterator:
            if batch.seq_idx.min() > 1900:
                break
        state = loader.state_dict()
        expected = next(iterator)
    with open_loader(seqs * 50, batching=Buckets(FrameBudget(40), num_buckets=4)) as loader:
        loader.load_state_dict(state)
        batch = next(iter(loader))
        assert loader._runs.plan_of(1).num_planned <= 2
    assert batch.position == expected.position
    assert batch["data"].tobytes() == expected["data"].tobytes()


def test_a_loop_over_the_loader_is_the_next_epoch_each_time(seqs):
    with open_loader(seqs) as loader:
        assert {batch.epoch for batch in loader} == {1}
        assert {batch.epoch for batch in loader} == {2}
        for batch in loader:
            assert batch.epoch == 3
            break
        assert next(iter(loader)).epoch == 4
        loader.set_epoch(2)
        assert next(iter(loader)).epoch == 2


def test_epochs_names_them_and_gives_their_length(seqs):
    with open_loader(seqs) as loader:
        found = [(epoch.epoch, len(epoch), len(list(epoch))) for epoch in loader.epochs(2, 4)]
        assert [number for number, *_ in found] == [2, 3, 4]
        assert all(length == num for _, length, num in found)
        assert next(loader.epochs()).epoch == 5
        with pytest.raises(ConfigError, match=r"first"):
            loader.epochs(0)


def test_the_epoch_that_was_loaded_may_be_said_again_but_another_is_warned_of(seqs, caplog):
    state = saved_after(seqs, 2)
    with open_loader(seqs) as loader:
        loader.load_state_dict(state)
        loader.set_epoch(1)
        assert next(iter(loader)).position == 2
    with open_loader(seqs) as loader, caplog.at_level(logging.WARNING, "headrace.loading"):
        loader.load_state_dict(state)
        assert caplog.records == []
        loader.set_epoch(2)
        assert "gives up the loaded position: batch 2 of epoch 1" in caplog.text
        batch = next(iter(loader))
    assert (batch.epoch, batch.position) == (2, 0)


def test_an_iterator_that_was_asked_for_nothing_uses_up_no_epoch_and_ends_no_iteration(seqs):
    with open_loader(seqs) as loader:
        before = loader.state_dict()
        kept = iter(loader)  # as tqdm.auto does
        assert loader.state_dict() == before
        batches = iter(loader)
        first = next(batches)
        iter(loader)  # as a look at a loader in the middle of an epoch
        assert (first.epoch, next(batches).position) == (1, 1)
        assert next(kept).epoch == 2
        with pytest.raises(HeadraceError, match="another iteration"):
            next(batches)


def test_an_epoch_whose_first_batch_fails_is_not_used_up(seqs):
    failing = [True]

    def fail_once(seq):
        if failing.pop() if failing else False:
            raise ZeroDivisionError
        return seq

    with open_loader(seqs, transform=fail_once) as loader:
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
        assert next(iter(loader)).epoch == 1


def test_a_second_iteration_makes_the_first_raise(seqs):
    with open_loader(seqs) as loader:
        first = iter(loader)
        next(first)
        assert next(iter(loader)).epoch == 2
        with pytest.raises(HeadraceError, match="another iteration"):
            next(first)


def test_a_closed_loader_says_so(seqs):
    loader = open_loader(seqs)
    iterator = iter(loader)
    loader.close()
    loader.close()
    with pytest.raises(HeadraceError, match="loader was closed"):
        next(iterator)
    with pytest.raises(HeadraceError, match=r"closed"):
        iter(loader)


def test_len_is_the_number_of_steps_on_this_rank(seqs):
    with open_loader(seqs) as loader:
        total = len(loader)
        assert total == len(list(loader))
    for remainder in ("drop", "pad", "keep"):
        for rank in range(3):
            with open_loader(seqs, rank=rank, world_size=3, remainder=remainder) as loader:
                assert len(loader) == len(Steps(total, rank, 3, 0, remainder)) == len(list(loader))


def test_padding_repeats_the_first_batches_of_the_epoch_and_says_so(seqs):
    with open_loader(seqs) as loader:
        total = len(loader)
    world_size = total - 1
    with open_loader(seqs, rank=1, world_size=world_size, remainder="pad") as loader:
        batches = list(loader)
    assert [(batch.position, batch.is_repeat) for batch in batches] == [(1, False), (0, True)]


def test_a_dataset_that_shards_itself_is_not_divided_again(seqs):
    dataset = StaticDataset(seqs, _num_shards=2, _shard_index=1)
    with pytest.raises(ConfigError, match=r"two levels.*_num_shards=2.*world_size=2"):
        DataLoader(dataset, batching=BUDGET, rank=0, world_size=2)
    with pytest.raises(ConfigError, match=r"promises equal steps"):
        DataLoader(dataset, batching=BUDGET)
    with DataLoader(dataset, batching=BUDGET, remainder="keep") as loader:
        assert sorted(i for batch in loader for i in batch.corpus_idx.tolist()) == list(range(20, 40))
        assert "shards itself" in loader.explain()


def test_ranks_are_found_where_a_launcher_says_them(seqs, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with open_loader(seqs) as loader:
        assert [batch.position for batch in loader][:2] == [1, 3]


def test_the_explanation_names_what_was_left_out(seqs):
    with open_loader(seqs, batching=FrameBudget(15, too_long="drop")) as loader:
        assert len(list(loader)) > 0
        assert "left out: " in loader.explain()
        assert "too long" in loader.explain()
        counts = loader.count(1)
    assert counts.too_long == 10
    assert counts.seqs == 40


@pytest.mark.parametrize("epoch", [-1, 2**63, 2**64, 10**400])
def test_a_state_of_an_epoch_that_cannot_be_is_refused(epoch):
    with open_loader(SEQS) as loader, pytest.raises(ResumeError):
        loader.load_state_dict({**loader.state_dict(), "epoch": epoch})

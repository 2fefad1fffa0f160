"""One exchange before the first batch finds ranks that are about to load something else."""

import json
import threading

import pytest

from headrace import ConfigError, DataLoader, StaticDataset
from headrace.batching import FixedCount


class Exchange:
    """Gathers the cards of ranks that are threads, as a collective does: whoever comes waits for all."""

    def __init__(self, world_size):
        self.cards = [None] * world_size
        self.barrier = threading.Barrier(world_size, timeout=120)
        self.num_calls = 0

    def of(self, rank):
        def gather(card):
            self.cards[rank] = card
            self.num_calls += rank == 0
            self.barrier.wait()
            cards = list(self.cards)
            self.barrier.wait()
            return cards

        return gather


def run_ranks(seqs, world_size, options_of, use):
    """Return what `use(loader)` returned or raised on each rank."""
    exchange, found = Exchange(world_size), [None] * world_size

    def be(rank):
        options = {"batching": FixedCount(4), "rank": rank, "world_size": world_size, **options_of(rank)}
        data = options.pop("seqs", seqs)
        dataset = StaticDataset(data, seq_ordering=options.pop("ordering", "random"))
        with DataLoader(dataset, check_ranks=exchange.of(rank), **options) as loader:
            try:
                found[rank] = use(loader)
            except ConfigError as error:
                found[rank] = error

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(world_size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, exchange.num_calls


def test_ranks_that_agree_are_asked_once_and_never_again(seqs):
    def use(loader):
        return [len(list(loader)), len(list(loader))]

    found, num_calls = run_ranks(seqs, 3, lambda rank: {"num_workers": rank, "executor": "thread"}, use)
    assert found == [[3, 3]] * 3
    assert num_calls == 1


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"seed": 1}, "seed"),
        ({"batching": FixedCount(5)}, "batching"),
        ({"ordering": "default"}, "order"),
        ({"recipe_version": "v2"}, "user"),
        ({"remainder": "pad"}, "remainder"),
    ],
)
def test_the_part_that_differs_and_the_ranks_where_it_does_are_named_on_all_ranks(seqs, change, part):
    found, _ = run_ranks(seqs, 4, lambda rank: change if rank in (1, 3) else {}, iter)
    assert all(isinstance(error, ConfigError) for error in found)
    assert {error.what for error in found} == {found[0].what}
    assert f"the ranks do not agree on {part}: " in found[0].what
    assert "ranks 1, 3" in found[0].what
    assert found[2].where.startswith("rank 2 of 4")
    assert found[0].fix


def test_other_data_on_one_rank_are_found(seqs):
    found, _ = run_ranks(seqs, 3, lambda rank: {"seqs": seqs[:-1]} if rank == 0 else {}, iter)
    assert "do not agree on data" in found[1].what
    assert "on rank 0," in found[1].what


def test_a_state_that_not_all_ranks_have_loaded_is_found(seqs):
    with DataLoader(StaticDataset(seqs, seq_ordering="random"), batching=FixedCount(4)) as loader:
        next(iter(loader))
        state = loader.state_dict()

    def use(loader):
        if loader.ranks.rank == 1:
            loader.load_state_dict(state)
        return iter(loader)

    found, _ = run_ranks(seqs, 3, lambda rank: {}, use)
    assert "do not agree on position: it is 1 on rank 1, and 0 on the others" in found[0].what


def test_ranks_are_asked_again_after_a_state_was_loaded(seqs):
    def use(loader):
        states = [loader.state_dict()]
        for batch in loader:
            states.append(loader.state_dict())
            if batch.step == 1:
                break
        loader.load_state_dict(states[-1])
        return [batch.position for batch in loader]

    found, num_calls = run_ranks(seqs, 2, lambda rank: {}, use)
    assert found == [[4, 6, 8], [5, 7, 9]]
    assert num_calls == 2


@pytest.mark.parametrize(
    ("gathered", "text"),
    [
        (lambda card: [card], r"texts of ranks \[0\], expected 0 to 1"),
        (lambda card: [card, card], r"ranks \[0, 0\]"),
        (lambda card: ["x", card], "did not get from any rank"),
        (lambda card: ["{}", card], "did not get from any rank"),
        (lambda card: None, "did not get from any rank"),
        (lambda card: [3, card], "did not get from any rank"),
    ],
)
def test_what_is_not_gathered_from_each_rank_once_is_refused(seqs, gathered, text):
    options = {"batching": FixedCount(4), "rank": 0, "world_size": 2, "check_ranks": gathered}
    with DataLoader(StaticDataset(seqs), **options) as loader, pytest.raises(ConfigError, match=text):
        iter(loader)


def test_the_card_is_small_json_and_a_single_process_may_show_it_to_itself(seqs):
    cards = []

    def gather(card):
        cards.append(card)
        return [card]

    with DataLoader(StaticDataset(seqs), batching=FixedCount(4), check_ranks=gather) as loader:
        assert len(list(loader)) == 10
    assert len(cards) == 1
    assert len(cards[0]) < 1024
    assert json.loads(cards[0])["rank"] == 0


def test_a_dataset_that_shares_itself_out_may_have_another_order_on_each_rank(seqs):
    cards = []

    def open_rank(rank, gather):
        dataset = StaticDataset(seqs, _num_shards=2, _shard_index=rank)
        return DataLoader(dataset, batching=FixedCount(4), remainder="keep", check_ranks=gather)

    for rank in (0, 1):
        with open_rank(rank, lambda card: [cards.append(card) or card]) as loader:
            iter(loader)
    with open_rank(0, lambda card: cards) as loader:
        assert len(list(loader)) == 5


def test_a_check_that_is_no_function_is_refused(seqs):
    with pytest.raises(ConfigError, match="check_ranks"):
        DataLoader(StaticDataset(seqs), batching=FixedCount(4), check_ranks=True)

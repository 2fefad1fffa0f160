"""`TurnsDataset`: several datasets read in turn, each in its own order, where not all of them know their corpus.

Whose turn it is depends only on how far each of them is, and on a generator of the epoch's own. So the order is a pure
function of the parts and the epoch. `CombinedDataset` and `ConcatDataset` use it where there is no random access; see
`joint.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.errors import ConfigError, takes_note
from headrace.order import Default
from headrace.order.policy import legacy_rng
from headrace.specs import DataSpec

from ..base import Dataset
from ..cached2 import CachedDataset2
from ..corpus import Corpus
from ..digests import recipe_text
from ..parts import FOR_OWN_CLASS, taken_away
from ..seq import DatasetSeq
from .layout import JointLayout
from .order import GumbelScale, Interleave, RandomDataset, Reversed, parse_joint_ordering

_ORDERINGS = (Default, Reversed, Interleave, RandomDataset)
NAMES = ("default", "reversed", "interleave", "random_dataset")


class Turn:
    """One of the datasets, and how far it was read.

    Whose turn it is depends on the progress that each dataset reports, which only the epoch API tells: so the dataset
    is positioned here, and used by nothing else.

    Args:
        name: The name of the dataset.
        dataset: The dataset to read.
        keys: Data key of the whole -> its data key.
    """

    def __init__(self, name: str, dataset: Dataset, keys: Mapping[str, str]) -> None:
        self.name, self.dataset, self.keys = name, dataset, dict(keys)
        self.used = 0
        self._version: int | None = None
        self.num_seqs: int | None = None
        self._are_distinct = len(set(self.keys.values())) == len(self.keys)

    def start(self, epoch: int | None) -> None:
        """Start an epoch."""
        self.dataset.init_seq_order(epoch)
        self._version = self.dataset.order_version
        self.used = 0
        self.num_seqs = self.dataset.known_num_seqs()

    def has_next(self) -> bool:
        """Tell whether there is a next sequence; may load it."""
        self._check_position()
        return self.dataset.is_less_than_num_seqs(self.used)

    def progress(self) -> float:
        """Return the progress of this dataset after its next sequence.

        Raises:
            ConfigError: The dataset does not report its progress.
        """
        dataset = self.dataset
        dataset.load_seqs(self.used, self.used + 1)  # a stream may say it with the sequence
        frac = dataset.get_complete_frac(self.used, allow_only_lr_suitable=True)
        if frac is None:
            raise ConfigError(
                f"the sub-dataset {self.name!r} does not tell its progress, which interleaving needs",
                where=f"{type(dataset).__name__} {dataset.name!r}, sequence {self.used}",
                fix="let it know its num_seqs, or give its sequences a complete_frac; or use 'random_dataset' with "
                "estimated_num_seqs",
            )
        return frac

    def num_left(self) -> float:
        """Return how many sequences are left, at least 1; estimated by the progress if need be."""
        total: float | None = self.num_seqs
        if total is None:
            frac = self.progress()
            total = self.used / frac if self.used and frac > 0 else self.dataset.told_num_seqs or 1
        return max(total - self.used, 1.0)

    def pass_over(self) -> None:
        """Skip the next sequence."""
        self._check_position()
        self.dataset.load_seqs(self.used, self.used + 1)  # a stream must be read in its order
        self.used += 1

    def _check_position(self) -> None:
        if self._version != self.dataset.order_version:
            raise taken_away(self.dataset, self.name)

    def take(self, layout: JointLayout) -> DatasetSeq:
        """Return the next sequence, with the data keys of the whole; if anything is wrong, it stays the next one."""
        self._check_position()
        dataset, seq_idx = self.dataset, self.used
        dataset.load_seqs(seq_idx, seq_idx + 1)
        seq = dataset.get_seq(seq_idx)
        features = {key: seq.get_data(own) for key, own in self.keys.items()}
        layout.check(features, f"sequence {seq.seq_tag!r}", takes=self.keys.values(), offered=seq.features)
        self.used += 1
        if not self._are_distinct:
            features = {key: array.copy() for key, array in features.items()}
        return DatasetSeq.made_of(seq_idx, features, seq.seq_tag, seq.complete_frac, None)


class TurnsDataset(CachedDataset2):
    """The sequences of several datasets, in turn, each in its own order.

    Args:
        datasets: Sub-dataset by name.
        layout: Where each data key comes from.
        interleave_gumbel_scale: See `Interleave`.
        **kwargs: See `Dataset`. Sub-epochs, repeats, filters and sorting are up to the sub-datasets; so are shards,
            which are passed on to them.

    Raises:
        ConfigError: An option needs to know the corpora.
    """

    supports_window = False

    def __init__(
        self,
        datasets: Mapping[str, Dataset],
        layout: JointLayout,
        *,
        interleave_gumbel_scale: GumbelScale = None,
        **kwargs: Any,
    ) -> None:
        self._gumbel_scale = interleave_gumbel_scale
        self._reason = _first_unknown(datasets)
        ordering = kwargs.get("seq_ordering", "default")
        super().__init__(**{**kwargs, "seq_ordering": self._parse(ordering)})
        self._seq_ordering = ordering
        self.layout = layout
        self.num_outputs = dict(layout.outputs) if None not in layout.specs.values() else None
        self.labels = dict(layout.labels)
        self.num_inputs = layout.outputs.get("data", (0, 0))[0]
        self.turns = [Turn(name, dataset, layout.keys[name]) for name, dataset in datasets.items()]
        self._forget()
        estimates = [dataset.told_num_seqs for dataset in datasets.values()]
        if self._estimated_num_seqs is None and None not in estimates:
            self._estimated_num_seqs = sum(estimate or 0 for estimate in estimates)
        self._check_options()
        self._shard_parts()

    def _shard_parts(self) -> None:
        """Pass the shard on to the sub-datasets; or take theirs, if all are the same one, as those of a copy are."""
        own = {(turn.dataset.num_shards, turn.dataset.shard_index) for turn in self.turns}
        if self.num_shards == 1 and len(own) == 1:
            num_shards, shard_index = own.pop()
            self._change_recipe(num_shards=num_shards, shard_index=shard_index)
            return
        check_shards({turn.name: turn.dataset for turn in self.turns}, (self.num_shards, self.shard_index))
        self.set_sharding(self.num_shards, self.shard_index)

    def _parse(self, ordering: Any) -> Any:
        policy = parse_joint_ordering(ordering, self._gumbel_scale)
        if not callable(policy):
            self._check_policy(policy)
        return policy

    def _check_policy(self, policy: Any) -> None:
        if not isinstance(policy, _ORDERINGS):
            raise ConfigError(
                f"seq_ordering={str(policy)!r} needs random access to all sub-datasets, and {self._reason} has none",
                fix=f"use one of {', '.join(NAMES)}, and give the sub-datasets orders of their own; {FOR_OWN_CLASS}",
            )

    def _change_recipe(self, **changes: Any) -> None:
        if "seq_ordering" in changes:
            changes["seq_ordering"] = self._parse(changes["seq_ordering"])
        super()._change_recipe(**changes)
        self._check_options()

    def _check_options(self) -> None:
        given = {
            "partition_epoch": self.partition_epoch > 1,
            "repeat_epoch": self.repeat_epoch > 1,
            "seq_list_filter_file": self.seq_list_filter_file is not None,
            "unique_seq_tags": self.unique_seq_tags,
            "seq_order_seq_lens_file": self.seq_order_seq_lens_file is not None,
        }
        for option, is_given in given.items():
            if is_given:
                raise ConfigError(
                    f"{option} needs random access to all sub-datasets, and {self._reason} has none",
                    where=f"dataset {self.name!r}",
                    fix=f"give {option} to the sub-datasets",
                )

    def get_parts(self) -> Sequence[Dataset]:
        """Return the sub-datasets."""
        return [turn.dataset for turn in self.turns]

    def draws_text(self) -> str:
        """Return nothing: only the sub-datasets draw."""
        return ""

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what is known of the sub-datasets, as far as it does not matter whose turn it is."""
        corpora = [(turn.name, turn.dataset.get_corpus(epoch)) for turn in self.turns]
        return replace(
            super().get_corpus(epoch),
            digest_text=lambda: " | ".join(f"{name} {corpus.digest_text()}" for name, corpus in corpora),
        )

    def order_text(self, epoch: int) -> str:
        """Return a text of how the sub-datasets take turns, and of their orders."""
        parts = [f"{turn.name} {sorted(turn.keys.items())}: {turn.dataset.order_text(epoch)}" for turn in self.turns]
        return "; ".join([recipe_text(self._recipe, epoch), *parts])

    def _forget(self) -> None:
        self._choices: Iterator[int] = iter(())
        self._position, self._last_frac = 0, 0.0
        self._turn: Turn | None = None
        self._has_failed = False
        self._error: Exception | None = None

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start an epoch of all sub-datasets.

        Raises:
            ConfigError: An order is given.
        """
        if seq_list is not None or seq_order is not None:
            raise ConfigError(
                f"seq_list and seq_order need random access to all sub-datasets, and {self._reason} has none",
                where=f"dataset {self.name!r}",
            )
        super().init_seq_order(epoch)
        for turn in self.turns:
            turn.start(epoch)
        self._forget()
        self._policy: Any = Default() if epoch is None else self._recipe.policy_for_epoch(epoch)
        self._check_policy(self._policy)
        counts = [turn.num_seqs for turn in self.turns]
        self._num_seqs = None if epoch is not None and None in counts else sum(count or 0 for count in counts)
        self._choices = iter(()) if epoch is None else self._choose(epoch)
        return True

    def _choose(self, epoch: int) -> Iterator[int]:
        """Return whose turn it is, one after the other; to be asked when what was chosen before is taken."""
        turns, policy = self.turns, self._policy
        if isinstance(policy, Interleave):
            if policy.scale is None:
                return _least_progress(turns)
            return _by_gumbel_noise(turns, policy.scale, self._rng_of(epoch))
        if isinstance(policy, RandomDataset):
            return _by_estimates(turns, self._rng_of(epoch))
        order = range(len(turns))
        return _one_by_one(turns, order[::-1] if isinstance(policy, Reversed) else order)

    def _rng_of(self, epoch: int) -> np.random.RandomState:
        return legacy_rng(self.get_random_seed_for_epoch(epoch))

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, also of the sub-datasets."""
        super().finish_epoch(free_resources=free_resources)
        self._forget()

    def supports_sharding(self) -> bool:
        """Whether all sub-datasets do: each is divided."""
        return all(turn.dataset.supports_sharding() for turn in self.turns)

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make each sub-dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        for turn in self.turns:
            if not turn.dataset.supports_sharding():
                raise ConfigError(
                    f"the sub-dataset {turn.name!r}, a {type(turn.dataset).__name__}, cannot be divided into shards",
                    where=f"dataset {self.name!r}",
                )
        super()._take_shard(num_shards, shard_index)
        for turn in self.turns:
            turn.dataset.set_sharding(num_shards, shard_index)

    # --- reading ---

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        while self._position < seq_idx:
            turn = self._next_turn()
            if turn is None:
                return None
            if self._has_failed:  # it is no longer needed
                turn.used += 1
            else:
                turn.pass_over()
            self._go_on()
        turn = self._next_turn()
        if turn is None:
            return None
        try:
            frac = self._complete_frac(turn)
            seq = turn.take(self.layout)
        except Exception as error:
            takes_note(error, f"sub-dataset {turn.name!r} of {self.name!r}, its sequence {turn.used}")
            self._has_failed = True  # asked for again, it is the same one
            raise
        self._go_on()
        return DatasetSeq.made_of(seq_idx, self.layout.filled(seq.features), seq.seq_tag, frac, None)

    def _next_turn(self) -> Turn | None:
        """Return whose turn it is at the current position.

        Raises:
            Exception: A sub-dataset could not say whether it has more; again, if asked again: the epoch is not over.
        """
        if self._error is not None:
            raise self._error
        if self._turn is None:
            try:
                number = next(self._choices, None)
            except Exception as error:
                self._error = error
                raise
            self._turn = None if number is None else self.turns[number]
        return self._turn

    def _go_on(self) -> None:
        self._turn, self._has_failed = None, False
        self._position += 1

    def _complete_frac(self, turn: Turn) -> float | None:
        """Return how far the next sequence of a part leaves the whole; `None` if it follows from the counts."""
        if not isinstance(self._policy, Interleave) or self._num_seqs is not None:
            return None
        if self._policy.scale is None:
            self._last_frac = max(self._last_frac, turn.progress())
            return self._last_frac
        used = sum(turn.used for turn in self.turns) + 1
        total = sum(each.used + each.num_left() if each.has_next() else each.used for each in self.turns)
        self._last_frac = min(1.0, max(self._last_frac, used / total))
        return self._last_frac

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of all sub-datasets, if they tell them."""
        return [tag for turn in self.turns for tag in turn.dataset.get_all_tags()]

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of all sub-datasets, if they tell it."""
        return sum(turn.dataset.get_total_num_seqs(fast=fast) for turn in self.turns)

    def get_data_keys(self) -> list[str]:
        """Return the data keys, "data" first."""
        return self.layout.data_keys

    def _layout_of(self, key: str) -> DataSpec | None:
        return self.layout.specs.get(key)


def check_shards(datasets: Mapping[str, Dataset], shard: tuple[int, int]) -> None:
    """Refuse sub-datasets that are shards themselves.

    Args:
        datasets: The datasets by name.
        shard: One that they may be: number of shards, and which.

    Raises:
        ConfigError: One is another shard, so that two levels would divide the data.
    """
    for name, dataset in datasets.items():
        if dataset.num_shards > 1 and (dataset.num_shards, dataset.shard_index) != shard:
            raise ConfigError(
                f"two levels would shard: the sub-dataset {name!r} is shard {dataset.shard_index} of "
                f"{dataset.num_shards} already",
                fix="give _num_shards and _shard_index to the whole, and only to it",
            )


def _first_unknown(datasets: Mapping[str, Dataset]) -> str:
    """Return a text about the first dataset without random access."""
    for name, dataset in datasets.items():
        if not dataset.get_corpus().is_indexed:
            return f"{name!r} ({type(dataset).__name__})"
    return "none"


def _one_by_one(turns: Sequence[Turn], order: Sequence[int]) -> Iterator[int]:
    for number in order:
        while turns[number].has_next():
            yield number


def _least_progress(turns: Sequence[Turn]) -> Iterator[int]:
    while True:
        progress = [(turn.progress(), number) for number, turn in enumerate(turns) if turn.has_next()]
        if not progress:
            return
        yield min(progress)[1]


def _by_gumbel_noise(turns: Sequence[Turn], scale: float | str, rng: np.random.RandomState) -> Iterator[int]:
    while True:
        open_turns = [number for number, turn in enumerate(turns) if turn.has_next()]
        if not open_turns:
            return
        progress = [turns[number].progress() for number in open_turns]
        factor = 1.0 - max(progress) if isinstance(scale, str) else scale
        noise = rng.gumbel(size=len(open_turns)).tolist()
        values = [
            math.log(turns[number].num_left()) + factor * extra for number, extra in zip(open_turns, noise, strict=True)
        ]
        yield open_turns[values.index(max(values))]


def _by_estimates(turns: Sequence[Turn], rng: np.random.RandomState) -> Iterator[int]:
    """Draw by the estimated numbers of sequences left; once these are used up, evenly among those not at their end."""
    expected = [_estimate(turn) for turn in turns]
    while True:
        left = [estimate - turn.used for estimate, turn in zip(expected, turns, strict=True)]
        total = float(sum(left))
        if total < 0.1:
            open_turns = [number for number, turn in enumerate(turns) if turn.has_next()]
            if not open_turns:
                return
            number = int(rng.choice(open_turns))
            expected[number] += 1
            yield number
        else:
            number = int(rng.choice(len(turns), p=[count / total for count in left]))
            if turns[number].has_next():
                yield number
            else:
                expected[number] = turns[number].used


def _estimate(turn: Turn) -> int:
    return turn.num_seqs if turn.num_seqs is not None else turn.dataset.told_num_seqs or 0

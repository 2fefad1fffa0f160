"""`MixDataset`: several corpora mixed by weights, for as long as one likes.

The stream is one endless mixture (`headrace.order.Mixture`), of which each epoch is the next piece. Each sub-dataset
goes through its own epochs in its own order, whole ones, one after the other, wherever the epochs of the mixture end.
So position p of any epoch is known without those before it, and nothing has a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InternalError, SourceError, check_count, did_you_mean
from headrace.order import Lane, MixedOrder, Mixture, Order, Policy, full_epoch_of
from headrace.rng import derive_seed

from ..configs import DatasetConfig
from ..corpus import Corpus
from ..digests import digest_array
from ..orders import Orders
from .base import check_configs, check_names
from .combined import JointDataset
from .joint import JointCorpus
from .layout import JointLayout, parse_data_map

EpochSize = int | Literal["sum", "first_exhausted", "all_exhausted"]
_OTHER_PASSES = 2**20  # full epochs from the passes of one sub-dataset to those of another over the same corpus
_COMPARED = 4096  # positions of two orders: enough to tell whether they are one
_EPOCH_SIZES = ("sum", "first_exhausted", "all_exhausted")


@dataclass(frozen=True)
class _MixPolicy(Policy):
    """One full epoch of a mixture: the next piece of it.

    Attributes:
        text: All that the user said.
        full_epoch: Its number, from 0; -1: none yet.
        order: The positions.
    """

    text: str
    full_epoch: int = -1
    order: Order | None = field(default=None, compare=False)
    name: ClassVar[str] = "mix"
    is_exhaustive: ClassVar[bool] = False

    def plan(self, num_seqs: int, rng_seed: int, lengths: NDArray[Any] | None) -> Order:
        """Return the order."""
        if self.order is None:
            raise InternalError(f"{self} has no corpora ({num_seqs}, {rng_seed}, {lengths})")
        return self.order

    def __str__(self) -> str:
        return f"mix {self.text}"


class MixCorpus(JointCorpus):
    """Several corpora, mixed in given ratios.

    Args:
        name: See `Corpus`.
        orders: Likewise; their policy is a `_MixPolicy`.
        parts: Name -> part; all are indexed.
        joint: The data keys.
        weights: See `MixDataset`, as the others.
        per: Likewise.
        mixing: Likewise.
        seqs_per_epoch: Likewise.
    """

    def __init__(
        self,
        name: str,
        orders: Orders,
        parts: Mapping[str, Corpus],
        joint: JointLayout,
        *,
        weights: Mapping[str, float] | None,
        per: str,
        mixing: str,
        seqs_per_epoch: EpochSize,
    ) -> None:
        super().__init__(name, orders, parts, joint)
        self._given_weights, self._per, self._mixing, self._seqs_per_epoch = weights, per, mixing, seqs_per_epoch

    def with_orders(self, **options: Any) -> Self:
        """Return this corpus with other options, but for an ordering: its order is that of the mixture."""
        ordering = options.pop("seq_ordering", "default")
        if ordering != "default":
            raise _no_ordering(ordering, self.name)
        made = super(JointCorpus, self).with_orders(**options)
        made.orders.seq_ordering = "default"
        vars(made).pop("mixture", None)  # its seed may be another one
        return made

    def shares_of_all(self) -> dict[str, float]:
        """Return part -> its share of the sequences."""
        units = self.mixture.units / self.mixture.units.sum()
        return {name: float(share) for name, share in zip(self.names, units, strict=True)}

    @cached_property
    def mixture(self) -> Mixture:
        """Whose turn it is."""
        mixture = Mixture(self._weights(), shuffle_seed=self._shuffle_seed())
        for name, own, units in zip(self.names, self._sizes, mixture.units.tolist(), strict=True):
            if units and not sum(own):
                raise ConfigError(
                    f"the sub-dataset {name!r} has a weight and no sequences",
                    where=f"dataset {self.name!r}",
                    fix="give it the weight 0, or check its files and filters",
                )
        return mixture

    @cached_property
    def _sizes(self) -> list[list[int]]:
        """Sequences in the epochs of each part, up to where they come again."""
        return [
            [len(self.part_order(number, epoch)) for epoch in range(1, part.orders.recipe.num_sub_epochs + 1)]
            for number, part in enumerate(self.parts)
        ]

    @cached_property
    def _shifts(self) -> dict[int, int]:
        """Number of a part -> `_OTHER_PASSES` for each one before it that has the same corpus and the same order."""
        num_seqs = np.diff(self.starts).tolist()
        seen: dict[object, int] = {}
        shifts = {}
        for number, (part, size) in enumerate(zip(self.parts, num_seqs, strict=True)):
            if num_seqs.count(size) == 1:
                continue  # no other part has its size: no digest has to be computed
            order, _ = part.order(1)
            look = part.index.digest, len(order), order.block(0, min(len(order), _COMPARED)).tobytes()
            shifts[number] = seen.get(look, 0) * _OTHER_PASSES
            seen[look] = seen.get(look, 0) + 1
        return shifts

    def epoch_offset(self, number: int) -> int:
        """Return what is added to the number of a full epoch to get the epoch that a part is read in."""
        return self._shifts.get(number, 0) * self.parts[number].orders.recipe.num_sub_epochs

    def order_texts(self, epoch: int) -> list[str]:
        """Return also what the lengths of the parts have decided, which their digests need not cover."""
        texts = super().order_texts(epoch)
        if self._per == "seq" or self.has_fixed_lengths:
            return texts
        return [*texts, f"units {digest_array(self.mixture.units)}"]

    def _weights(self) -> list[float]:
        given = self._given_weights
        if given is None:
            return [sum(own) for own in self._sizes]
        weights = [given[name] for name in self.names]
        if self._per == "seq":
            return weights
        columns = self._frame_columns()
        means = [float(np.mean(column)) if len(column) else 1.0 for column in columns]
        for name, weight, mean in zip(self.names, weights, means, strict=True):
            if weight and not mean > 0:
                raise ConfigError(
                    f"the sequences of {name!r} have no frames at all, so they have no share of them",
                    where=f"dataset {self.name!r}",
                    fix='mix by sequences, per="seq"',
                )
        return [weight / mean if weight else 0.0 for weight, mean in zip(weights, means, strict=True)]

    def _frame_columns(self) -> list[NDArray[Any]]:
        """Return what counts as frames, by part: `int[N]` of the sequences that it keeps."""
        for key in self.joint.data_keys:
            found = [_indexed_lengths(part, self.keys[name].get(key)) for name, part in self.by_name.items()]
            columns = [column for column in found if column is not None]
            if len(columns) == len(self.parts):
                break
        else:
            columns = [part.sort_lengths() for part in self.parts]
        kept = [part.kept() for part in self.parts]
        return [column if mask is None else column[mask] for column, mask in zip(columns, kept, strict=True)]

    def _shuffle_seed(self) -> int | None:
        if self._mixing == "even":
            return None
        recipe = self.orders.recipe
        fixed = recipe.fixed_random_seed
        seed = (recipe.random_seed_offset or 0) if fixed is None else fixed
        return derive_seed(seed, "mix" if fixed is None else "mix, fixed", bits=63)

    def _set_policy(self, epoch: int) -> None:
        """Tell the planner which piece of the mixture the full epoch is, and which epochs of the parts that needs."""
        recipe, planner = self.orders.recipe, self.orders.planner
        given, planned = recipe.seq_ordering, planner.recipe.seq_ordering
        assert isinstance(given, _MixPolicy)
        policy = dataclasses.replace(given, full_epoch=full_epoch_of(epoch, recipe.num_sub_epochs))
        if policy != planned:
            policy = dataclasses.replace(policy, order=self._order_of_full_epoch(policy.full_epoch))
            planner.recipe = dataclasses.replace(recipe, seq_ordering=policy)

    def _order_of_full_epoch(self, full_epoch: int) -> Order:
        mixture, num_seqs, totals = self.mixture, self._seqs_per_epoch, [sum(own) for own in self._sizes]
        if num_seqs == "sum":
            num_seqs = sum(total for total, units in zip(totals, mixture.units.tolist(), strict=True) if units)
        elif isinstance(num_seqs, str):
            num_seqs = mixture.first_position_with(totals, reached_by="any" if num_seqs == "first_exhausted" else "all")
        positions = range(full_epoch * num_seqs, (full_epoch + 1) * num_seqs)
        return MixedOrder(mixture, self._lanes(positions), positions)

    def _lanes(self, positions: range) -> list[Lane]:
        """Return the parts as lanes that know the orders of their epochs which the positions need."""
        lanes: list[Lane] = []
        draws = zip(*map(self.mixture.num_draws, (positions.start, positions.stop)), strict=True)
        for number, (own, (first, last)) in enumerate(zip(self._sizes, draws, strict=True)):
            orders: dict[int, Order] = {}
            lane = Lane(own, orders.__getitem__, int(self.starts[number]))
            for epoch in lane.epochs_of(int(first), int(last)):
                orders[epoch] = self.part_order(number, epoch)
                wanted = own[(epoch - 1) % len(own)]
                if len(orders[epoch]) != wanted:
                    raise SourceError(
                        f"it has {len(orders[epoch])} sequences in its epoch {epoch}, and {wanted} in epoch "
                        f"{(epoch - 1) % len(own) + 1}",
                        where=f"sub-dataset {self.names[number]!r} of dataset {self.name!r}",
                        fix="give it an order of which each full epoch has as many sequences",
                    )
            lanes.append(lane)
        return lanes


class MixDataset(JointDataset):
    """Several datasets with different sequences, mixed in given ratios.

    Each sub-dataset is read in its own order (its `seq_ordering`, seeds, filters), one of its epochs after the other:
    none of its sequences comes a second time before all of them have come. Where an epoch of the mixture ends, the next
    one goes on. So a small corpus with a large weight comes again, a large one with a small weight is read on, and
    nothing is left out for ever.

    If two sub-datasets read the same corpus in the same shuffled order, say under two transforms, the second one's
    passes are other ones: its epochs are numbered from 2**20 full epochs on, so that neither its order nor what its
    transforms draw repeats the first one's. (Not if a `fixed_random_seed` is what they have in common.)

    Args:
        datasets: Name -> config of a sub-dataset. Each must know its corpus; streams cannot be mixed by position.
        weights: Name -> its share; only ratios count. 0 leaves a sub-dataset out. `None`: as many as it has sequences.
        per: What the shares are shares of: `"seq"` sequences, `"frame"` frames (of the first data key that all of them
            index, else of what each sorts by): shares of sequences are then divided by the mean length of its corpus,
            so that frames keep the ratio over whole epochs of the sub-datasets, whatever the order.
        mixing: `"even"` spreads each sub-dataset as evenly as can be: 2 : 1 is A B A, A B A, ...; `"shuffled"` shuffles
            whose turn it is within blocks of 4096 positions, keyed by `random_seed_offset` or `fixed_random_seed`.
        seqs_per_epoch: Sequences of a full epoch: a number; `"sum"`, as many as all sub-datasets that are used have;
            `"first_exhausted"` or `"all_exhausted"`, as many as it takes, from the beginning, until one sub-dataset, or
            each, has come once.
        data_map: As in `CombinedDataset`; `None`: all sub-datasets have the same data keys.
        data_dims: As in `CombinedDataset`.
        data_dtypes: As in `CombinedDataset`.
        **kwargs: See `Dataset`. `partition_epoch`, shards and filters divide a full epoch of the mixture; a filter here
            changes the ratios, one in a sub-dataset does not.

    Raises:
        ConfigError: An option is wrong, a weight is negative or not finite, all are 0, a sub-dataset does not know its
            corpus, or one with a weight has no sequences.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        weights: Mapping[str, float] | None = None,
        *,
        per: Literal["seq", "frame"] = "seq",
        mixing: Literal["even", "shuffled"] = "even",
        seqs_per_epoch: EpochSize = "sum",
        data_map: Mapping[tuple[str, str], str] | Sequence[Sequence[str]] | None = None,
        data_dims: Mapping[str, tuple[int, int]] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        check_configs(datasets)
        _check_options(datasets, weights, per, mixing, seqs_per_epoch)
        if kwargs.get("seq_ordering", "default") != "default":
            raise _no_ordering(kwargs["seq_ordering"], str(kwargs.get("name")))
        options: dict[str, Any] = {"weights": weights, "per": per, "mixing": mixing, "seqs_per_epoch": seqs_per_epoch}
        super().__init__(**{**kwargs, "seq_ordering": _MixPolicy(f"{list(datasets)} {options}")})
        self._orders.seq_ordering = "default"
        entries = None if data_map is None else parse_data_map(data_map, datasets)
        unmapped = [] if entries is None else sorted(set(datasets) - {entry.part for entry in entries})
        if unmapped:
            raise ConfigError(
                f"data_map takes no data key of the sub-dataset {unmapped[0]!r}",
                where=f"dataset {self.name!r}",
                fix="map one, or leave the sub-dataset out",
            )
        parts, layout = self._open(datasets, entries, data_dims, data_dtypes)
        self._set_corpus(MixCorpus(self.name, self._orders, parts, layout, **options))

    def shares(self) -> dict[str, float]:
        """Return sub-dataset -> its share of the sequences."""
        corpus = self._read
        assert isinstance(corpus, MixCorpus)
        return corpus.shares_of_all()


def _check_options(datasets: Mapping[str, Any], weights: Any, per: str, mixing: str, seqs_per_epoch: Any) -> None:
    """Refuse options of a mixture before a file is opened."""
    for option, value, valid in (("per", per, ("seq", "frame")), ("mixing", mixing, ("even", "shuffled"))):
        if value not in valid:
            what = f"{option}={value!r} is none of {', '.join(valid)}"
            raise ConfigError(what, fix=did_you_mean(str(value), valid))
    if not isinstance(seqs_per_epoch, str):
        check_count("seqs_per_epoch", seqs_per_epoch, minimum=1)
    elif seqs_per_epoch not in _EPOCH_SIZES:
        what = f"seqs_per_epoch={seqs_per_epoch!r} is no number, and none of {', '.join(_EPOCH_SIZES)}"
        raise ConfigError(what, fix=did_you_mean(seqs_per_epoch, _EPOCH_SIZES))
    if weights is None:
        return
    if not isinstance(weights, Mapping):
        raise ConfigError(f"weights must be a dict sub-dataset -> number, got {weights!r}")
    check_names("weights", weights, "sub-dataset", datasets)
    for name in datasets:
        if name not in weights:
            raise ConfigError(f"weights has no number for the sub-dataset {name!r}", fix="0 leaves it out")
    Mixture(list(weights.values()))


def _no_ordering(ordering: Any, name: str) -> ConfigError:
    return ConfigError(
        f"seq_ordering={ordering!r} of a MixDataset: its order is that of the mixture",
        where=f"dataset {name!r}",
        fix='give seq_ordering to the sub-datasets; mixing="shuffled" shuffles whose turn it is',
    )


def _indexed_lengths(part: Corpus, key: str | None) -> NDArray[Any] | None:
    column = part.lengths(key, True) if part.has_fixed_lengths and key is not None else None
    return None if column is None else column(np.arange(part.size() or 0))

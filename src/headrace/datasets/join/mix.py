"""`MixDataset`: several corpora mixed by weights, for as long as one likes.

The stream is one endless mixture (`headrace.order.Mixture`), of which each epoch is the next piece. Each sub-dataset
goes through its own epochs in its own order, whole ones, one after the other, wherever the epochs of the mixture end.
So position p of any epoch is known without those before it, and nothing has a state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, InternalError, SourceError, check_count, did_you_mean
from headrace.order import Lane, MixedOrder, Mixture, Order, Policy, full_epoch_of
from headrace.rng import derive_seed

from ..configs import DatasetConfig
from ..digests import digest_array
from ..reading.reader import Reader
from .base import MetaPart, check_configs, check_names
from .combined import JointDataset
from .layout import parse_data_map

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
        options = {"weights": weights, "per": per, "mixing": mixing, "seqs_per_epoch": seqs_per_epoch}
        super().__init__(**{**kwargs, "seq_ordering": _MixPolicy(f"{list(datasets)} {options}")})
        self._seq_ordering = "default"
        self._given_weights, self._per, self._mixing, self._seqs_per_epoch = weights, per, mixing, seqs_per_epoch
        entries = None if data_map is None else parse_data_map(data_map, datasets)
        unmapped = [] if entries is None else sorted(set(datasets) - {entry.part for entry in entries})
        if unmapped:
            raise ConfigError(
                f"data_map takes no data key of the sub-dataset {unmapped[0]!r}",
                where=f"dataset {self.name!r}",
                fix="map one, or leave the sub-dataset out",
            )
        owned = self._join(datasets, entries, data_dims, data_dtypes)
        self._sizes: list[list[int]] = []  # of the epochs of each part, up to where they come again
        self._mixture: Mixture | None = None
        self._mixed_corpus: object = None
        self._shifts: dict[str, int] = {}  # sub-dataset -> what is added to the numbers of its full epochs
        if type(self).__init__ is MixDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            mapped = None if entries is None else [list(entry) for entry in entries]
            layout = {"data_map": mapped, "data_dims": data_dims, "data_dtypes": data_dtypes}
            self._ctor_args = ((), {**kwargs, "datasets": owned, **options, **layout})

    def _change_recipe(self, **changes: Any) -> None:
        ordering = changes.pop("seq_ordering", "default")
        if ordering != "default":
            raise _no_ordering(ordering, self.name)
        if changes:
            super()._change_recipe(**changes)
            self._mixture = None  # its seed may be another one

    def shares(self) -> dict[str, float]:
        """Return sub-dataset -> its share of the sequences."""
        mixture, _ = self._mixed()
        units = mixture.units / mixture.units.sum()
        return {part.name: float(share) for part, share in zip(self.members, units, strict=True)}

    def _mixed(self) -> tuple[Mixture, list[list[int]]]:
        """Return the mixture, and how many sequences the epochs of each part have."""
        corpus = self.corpus
        if self._mixture is None or self._mixed_corpus is not corpus:
            self._planner.invalidate()
            self._planner.recipe = self._recipe
            self._shifts = self._shifts_of_twins()
            self._sizes = [
                [len(self._own_order(part, epoch)) for epoch in range(1, part.dataset.partition_epoch + 1)]
                for part in self.members
            ]
            mixture = Mixture(self._weights(self._sizes), shuffle_seed=self._shuffle_seed())
            for part, own, units in zip(self.members, self._sizes, mixture.units.tolist(), strict=True):
                if units and not sum(own):
                    raise ConfigError(
                        f"the sub-dataset {part.name!r} has a weight and no sequences",
                        where=f"dataset {self.name!r}",
                        fix="give it the weight 0, or check its files and filters",
                    )
            self._mixture, self._mixed_corpus = mixture, corpus
        return self._mixture, self._sizes

    def _order_details(self, epoch: int) -> list[str]:
        """Return also what the lengths of the parts have decided, which their digests need not cover."""
        details = super()._order_details(epoch)
        if self._per == "seq" or self.get_corpus().has_fixed_lengths:
            return details
        return [*details, f"units {digest_array(self._mixed()[0].units)}"]

    def _shifts_of_twins(self) -> dict[str, int]:
        """Return sub-dataset -> `_OTHER_PASSES` for each one before it that has the same corpus and the same order."""
        self._shifts = {}
        num_seqs = np.diff(self.corpus.starts).tolist()
        seen: dict[object, int] = {}
        shifts = {}
        for part, size in zip(self.members, num_seqs, strict=True):
            if num_seqs.count(size) == 1:
                continue  # no other part has its size: no digest has to be computed
            order = self._own_order(part, 1)
            look = part.corpus.index().digest, len(order), order.block(0, min(len(order), _COMPARED)).tobytes()
            shifts[part.name] = seen.get(look, 0) * _OTHER_PASSES
            seen[look] = seen.get(look, 0) + 1
        return shifts

    def _epoch_offset(self, part: MetaPart) -> int:
        return self._shifts.get(part.name, 0) * part.dataset.partition_epoch

    def _new_reader(self) -> Reader:
        self._mixed()  # says which epochs of the parts are read
        return super()._new_reader()

    def _weights(self, sizes: Sequence[Sequence[int]]) -> list[float]:
        given = self._given_weights
        if given is None:
            return [sum(own) for own in sizes]
        weights = [given[part.name] for part in self.members]
        if self._per == "seq":
            return weights
        columns = self._frame_columns()
        means = [float(np.mean(column)) if len(column) else 1.0 for column in columns]
        for part, weight, mean in zip(self.members, weights, means, strict=True):
            if weight and not mean > 0:
                raise ConfigError(
                    f"the sequences of {part.name!r} have no frames at all, so they have no share of them",
                    where=f"dataset {self.name!r}",
                    fix='mix by sequences, per="seq"',
                )
        return [weight / mean if weight else 0.0 for weight, mean in zip(weights, means, strict=True)]

    def _frame_columns(self) -> list[NDArray[Any]]:
        """Return what counts as frames, by part: `int[N]` of the sequences that it keeps."""
        for key in self.layout.data_keys:
            found = [_indexed_lengths(part, key) for part in self.members]
            columns = [column for column in found if column is not None]
            if len(columns) == len(self.members):
                break
        else:
            columns = [part.corpus.sort_lengths() for part in self.members]
        kept = [part.corpus.kept() for part in self.members]
        return [column if mask is None else column[mask] for column, mask in zip(columns, kept, strict=True)]

    def _shuffle_seed(self) -> int | None:
        if self._mixing == "even":
            return None
        fixed = self.fixed_random_seed
        seed = (self.random_seed_offset or 0) if fixed is None else fixed
        return derive_seed(seed, "mix" if fixed is None else "mix, fixed", bits=63)

    def _set_policy(self, epoch: int) -> None:
        """Tell the planner which piece of the mixture the full epoch is, and which epochs of the parts that needs."""
        mixture, sizes = self._mixed()
        given, planned = self._recipe.seq_ordering, self._planner.recipe.seq_ordering
        assert isinstance(given, _MixPolicy)
        policy = dataclasses.replace(given, full_epoch=full_epoch_of(epoch, self.partition_epoch))
        if policy == planned:
            return
        order = self._order_of_full_epoch(policy.full_epoch, mixture, sizes)
        policy = dataclasses.replace(policy, order=order)
        self._planner.recipe = dataclasses.replace(self._recipe, seq_ordering=policy)

    def _order_of_full_epoch(self, full_epoch: int, mixture: Mixture, sizes: Sequence[Sequence[int]]) -> Order:
        num_seqs, totals = self._seqs_per_epoch, [sum(own) for own in sizes]
        if num_seqs == "sum":
            num_seqs = sum(total for total, units in zip(totals, mixture.units.tolist(), strict=True) if units)
        elif isinstance(num_seqs, str):
            num_seqs = mixture.first_position_with(totals, reached_by="any" if num_seqs == "first_exhausted" else "all")
        positions = range(full_epoch * num_seqs, (full_epoch + 1) * num_seqs)
        return MixedOrder(mixture, self._lanes(mixture, sizes, positions), positions)

    def _lanes(self, mixture: Mixture, sizes: Sequence[Sequence[int]], positions: range) -> list[Lane]:
        """Return the parts as lanes that know the orders of their epochs which the positions need."""
        lanes: list[Lane] = []
        bounds = zip(mixture.num_draws(positions.start), mixture.num_draws(positions.stop), strict=True)
        starts = self.corpus.starts.tolist()
        for part, own, (first, last), start in zip(self.members, sizes, bounds, starts, strict=False):
            orders: dict[int, Order] = {}
            lane = Lane(own, orders.__getitem__, start)
            for epoch in lane.epochs_of(int(first), int(last)):
                orders[epoch] = self._own_order(part, epoch)
                wanted = own[(epoch - 1) % len(own)]
                if len(orders[epoch]) != wanted:
                    raise SourceError(
                        f"it has {len(orders[epoch])} sequences in its epoch {epoch}, and {wanted} in epoch "
                        f"{(epoch - 1) % len(own) + 1}",
                        where=f"sub-dataset {part.name!r} of dataset {self.name!r}",
                        fix="give it an order of which each full epoch has as many sequences",
                    )
            lanes.append(lane)
        return lanes


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


def _indexed_lengths(part: MetaPart, key: str) -> NDArray[Any] | None:
    corpus = part.corpus
    column = corpus.lengths(part.keys[key], True) if corpus.has_fixed_lengths and key in part.keys else None
    return None if column is None else column(np.arange(corpus.size() or 0))

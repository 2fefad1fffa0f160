"""Which files each sub-epoch of each rank has, which datasets they make, and how many sequences, before any is read.

Invariant: the files and numbers of sequences are a function of the file list, the sizes, the options and what was
counted, so that all ranks say the same about each other without asking.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.files.lists.sizes import FileTable
from headrace.files.lists.tree import FileTree, map_leaves, tree_key, tree_leaves
from headrace.files.plan import FilePlan
from headrace.order import OrderRecipe
from headrace.order.recipe import full_epoch_of
from headrace.ranks import Ranks, find_ranks

from ..checks import check_count, check_flag
from ..configs import config_text
from .sub_dataset import (
    GetSubEpochDataset,
    SubDatasetDefaults,
    SubEpochLayout,
    SubEpochPlan,
    SubEpochSpec,
    describe_files,
    make_sub_dataset,
)
from .worker import EntryCounts

_logger = logging.getLogger("headrace.datasets")
_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """How files are shared out; checked when built.

    Attributes:
        get_sub_epoch_dataset: The user's function.
        shards_files: Whether ranks share the files.
        rank: Rank of this process, if given.
        world_size: The number of ranks, if given.
        shards_twice: The legacy behaviour.
        balance: See `FilePlan`.
        num_canonical_shards: See `FilePlan`.
        num_preloaded: How many coming sub-epochs are opened ahead of time.
        remainder: "drop": sub-epochs are cut to the smallest of all ranks, once it is known.

    Raises:
        ConfigError: A wrong option; they go by the names that users know.
    """

    get_sub_epoch_dataset: GetSubEpochDataset
    shards_files: bool
    rank: int | None
    world_size: int | None
    shards_twice: bool
    balance: Literal["in_order", "largest_first"]
    num_canonical_shards: int | None
    num_preloaded: int
    remainder: Literal["drop", "keep"]

    def __post_init__(self) -> None:
        """Check each option."""
        if not callable(self.get_sub_epoch_dataset):
            raise ConfigError(
                "get_sub_epoch_dataset must be a function from a list of files to the config of a dataset: "
                f"{self.get_sub_epoch_dataset!r}"
            )
        check_flag("distrib_shard_files", self.shards_files)
        check_count("preload_next_n_sub_epochs", self.num_preloaded)
        if self.num_canonical_shards is not None:
            check_count("num_canonical_shards", self.num_canonical_shards, minimum=1)
        for name, valid in (("balance", ("in_order", "largest_first")), ("remainder", ("drop", "keep"))):
            if getattr(self, name) not in valid:
                raise ConfigError(f"{name} must be one of {valid}: {getattr(self, name)!r}")
        if self.rank is not None or self.world_size is not None:
            find_ranks(self.rank, self.world_size)  # checks them
            if not self.shards_files:
                raise ConfigError(
                    f"rank={self.rank} and world_size={self.world_size} are given, but ranks do not share the files",
                    fix="set distrib_shard_files=True",
                )


class FileShare:
    """The files that this rank reads, those of the others, and how many sequences they hold. Not thread-safe.

    Args:
        trees: The file list.
        options: See `ShareOptions`.
        name: Name of the dataset, for messages.

    Attributes:
        trees: The file list.
        ranks: The rank that shares the files, and its origin; `None` before the first epoch, or if ranks do not share.
    """

    def __init__(self, trees: list[FileTree], options: ShareOptions, name: str) -> None:
        self.trees = trees
        self._options = options
        self._name = name
        self._recipe = OrderRecipe()
        self._sizes: NDArray[np.int64] | None = None
        self._plan: FilePlan | None = None
        self._generation = 0  # grows when other files make a sub-epoch
        self._specs: dict[tuple[int, int], SubEpochSpec] = {}
        self._counts = np.full(len(trees), _UNKNOWN, dtype=np.int64)  # sequences by entry
        self._together: dict[bytes, int] = {}  # of entries that were read together
        self._is_counted = False
        self._carried: Ranks | None = None  # what this object knew in another process
        self._is_loss_told = False
        self.ranks: Ranks | None = None
        self._current = 0, np.zeros(0, dtype=np.int64)  # the sub-epoch of the last plan, and its files

    def use(self, recipe: OrderRecipe) -> None:
        """Take over the options of the dataset.

        Raises:
            ConfigError: They make no distribution: fewer files than bins, an ordering of another kind.
        """
        if str(recipe.seq_ordering) not in ("default", "random"):
            raise ConfigError(
                f"seq_ordering={recipe.seq_ordering!s} is none for files: they come in the order of their list, or "
                "shuffled",
                where=f"dataset {self._name!r}",
                fix="set seq_ordering to 'default' or 'random' here, and the order of sequences in the sub dataset",
            )
        if recipe.num_sub_epochs > len(self.trees):
            raise ConfigError(
                f"{len(self.trees)} entries in the file list are fewer than partition_epoch={recipe.num_sub_epochs}",
                where=f"dataset {self._name!r}",
                fix="lower partition_epoch, or split the data into more files",
            )
        if recipe != self._recipe:
            self._recipe, self._plan = recipe, None

    # --- ranks ---

    @property
    def shards(self) -> tuple[int, int]:
        """Into how many shards files are divided, and which one this is. Until the first epoch it may still change.

        Raises:
            ConfigError: The options of the dataset contradict the ranks.
        """
        given = self._recipe.num_shards, self._recipe.shard_index
        if not self._options.shards_files:
            return given
        return _join_shards(given, self.ranks or self._find_ranks(), f"dataset {self._name!r}")

    def _find_ranks(self) -> Ranks:
        """Find out which rank this is; what this object knew in another process counts if nothing says it here."""
        ranks = find_ranks(self._options.rank, self._options.world_size)
        return self._carried if ranks.world_size == 1 and self._carried is not None else ranks

    def settle_ranks(self) -> None:
        """Fix which rank this is: distributed training may be set up after this object is made."""
        if self._options.shards_files and self.ranks is None:
            ranks = self.ranks = self._find_ranks()
            of_all = f"{ranks.rank} of {ranks.world_size} ({ranks.source})"
            _logger.info("dataset %r: files are shared by rank: %s", self._name, of_all)
        num_shards, _ = self.shards
        if self._options.shards_twice and num_shards > 1 and not self._is_loss_told:
            self._is_loss_told = True
            _logger.warning(
                "dataset %r: sharding_fix=False divides the data among the ranks twice: each of %d ranks reads 1/%d of "
                "the sequences of its own files, and the others are never read",
                self._name,
                num_shards,
                num_shards,
            )

    # --- files ---

    @property
    def plan(self) -> FilePlan:
        """The distribution of the files; at first the size of each file is taken.

        Raises:
            ConfigError: There are fewer files than bins.
            SourceError: A file is missing.
        """
        num_shards = self.shards[0]
        if self._plan is None or self._plan.num_shards != num_shards:  # ranks may be found after this was asked once
            recipe = self._recipe
            self._generation += 1
            if self._sizes is None:
                self._sizes = self._table.sizes
            self._plan = FilePlan(
                self._sizes,
                partition_epoch=recipe.num_sub_epochs,
                num_shards=num_shards,
                ordering="random" if str(recipe.seq_ordering) == "random" else "default",
                random_seed_offset=recipe.random_seed_offset or 0,
                fixed_random_seed=recipe.fixed_random_seed,
                balance=self._options.balance,
                num_canonical_shards=self._options.num_canonical_shards,
            )
        return self._plan

    @cached_property
    def _table(self) -> FileTable:
        """What is kept about the files."""
        return FileTable.of(self.trees)

    def trees_of(self, epoch: int, rank: int | None = None) -> list[FileTree]:
        """Return the files of a sub-epoch, in order, of this or another rank."""
        return [self.trees[entry] for entry in self._entries_of(epoch, rank).tolist()]

    def _entries_of(self, epoch: int, rank: int | None = None) -> NDArray[np.int64]:
        num_shards, shard_index = self.shards
        if rank is not None and not 0 <= rank < num_shards:
            raise ConfigError(f"there is no rank {rank}: they are 0..{num_shards - 1}", where=f"dataset {self._name!r}")
        return self.plan.files_of(epoch, shard_index if rank is None else rank)

    # --- datasets ---

    def plan_of(self, epoch: int, layout: SubEpochLayout | None) -> SubEpochPlan:
        """Return what to open for a sub-epoch, and what to open next.

        Raises:
            Exception: The user's function fails for this sub-epoch, or returns no dataset. For a coming one that is
                raised when its turn has come.
        """
        specs = {epoch: self._spec_of(epoch)}
        self._current = epoch, self._entries_of(epoch)
        for coming in range(epoch + 1, epoch + 1 + self._options.num_preloaded):
            try:
                specs[coming] = self._spec_of(coming)
            except Exception as error:  # noqa: BLE001 - raised when this sub-epoch is asked for
                _logger.info("sub-epoch %d is not opened ahead of time: %s", coming, error)
                break
        self._specs = {spec.key: spec for spec in specs.values()}
        known = None if layout is None else replace(layout, labels={})  # labels are not compared, and may be large
        return SubEpochPlan(tuple(specs.values()), known)

    def _spec_of(self, epoch: int) -> SubEpochSpec:
        trees = self.trees_of(epoch)
        key = (self._generation, epoch)
        if key in self._specs:
            return self._specs[key]
        full_epoch = full_epoch_of(epoch, self._recipe.num_sub_epochs) + 1
        return self._make_spec(key, epoch, full_epoch, trees, f"sub-epoch {epoch}")

    def config_text(self, epoch: int) -> str:
        """Return a text of the dataset that the user's function describes for a sub-epoch, see `config_text`."""
        spec = self._spec_of(epoch)
        return config_text(spec.dataset, spec.full_epoch)

    def names_text(self, trees: Sequence[FileTree]) -> str:
        """Return the names of files without the folder that all files are in: it may be another one later."""
        names = [name for tree in self.trees for name in tree_leaves(tree)]
        folders = [os.path.dirname(name) for name in names]
        root = os.path.commonprefix(folders)  # noqa: RUF071 (any common beginning will do)
        return " ".join(tree_key(map_leaves(tree, lambda name: name[len(root) :].lstrip("/"))) for tree in trees)

    def spec_of_entry(self, entry: int) -> SubEpochSpec:
        """Return the specification of the dataset of one entry of the file list alone.

        Raises:
            Exception: As for `plan_of`.
        """
        return self._make_spec((0, entry), 1, 1, [self.trees[entry]], f"entry {entry} of the file list")

    def _make_spec(
        self, key: tuple[int, int], epoch: int, full_epoch: int, trees: list[FileTree], where: str
    ) -> SubEpochSpec:
        num_shards, shard_index = self.shards
        defaults = SubDatasetDefaults(
            random_seed_offset=self._recipe.random_seed_offset or 0,
            num_shards=num_shards,
            shard_index=shard_index,
            shards_twice=self._options.shards_twice,
            files_change=str(self._recipe.seq_ordering) == "random",
        )
        files = describe_files(trees)  # before the user has the list
        dataset = make_sub_dataset(self._options.get_sub_epoch_dataset, trees, defaults, where)
        return SubEpochSpec(key, epoch, full_epoch, files, dataset)

    # --- numbers of sequences ---

    def num_seqs_of(self, epoch: int, rank: int | None = None) -> int | None:
        """Return how many sequences a rank delivers in a sub-epoch, as far as that is known. O(ranks) if it is cut."""
        entries, limit = self._entries_of(epoch, rank), self.limit_of(epoch)
        return self._count_of(entries) if limit is None else limit

    def limit_of(self, epoch: int) -> int | None:
        """Return to how many sequences each rank is cut in a sub-epoch; `None`: not at all."""
        if self._options.remainder != "drop" or not self._is_counted:
            return None
        return min(int(self._counts[self._entries_of(epoch, rank)].sum()) for rank in range(self.plan.num_shards))

    def _count_of(self, entries: NDArray[np.int64]) -> int | None:
        """Return how many sequences some entries hold, `None` if that is not known."""
        counts = self._counts[entries]
        return self._together.get(entries.tobytes()) if (counts == _UNKNOWN).any() else int(counts.sum())

    def learn(self, num_seqs: int) -> None:
        """Note the number of sequences that the sub-epoch of the last plan turned out to have.

        Raises:
            ConfigError: The files were counted, and there were not as many.
        """
        epoch, entries = self._current
        if self._is_counted and (expected := self._count_of(entries)) != num_seqs:
            raise ConfigError(
                f"sub-epoch {epoch} has {num_seqs} sequences, but {expected} were counted in its files",
                where=f"dataset {self._name!r}, files {describe_files([self.trees[entry] for entry in entries])}",
                fix="count_files adds up single files: leave out options of the sub dataset that look at several, such "
                "as unique_seq_tags; if files were changed, make the dataset anew",
            )
        if len(entries) == 1:
            self._counts[entries[0]] = num_seqs
        elif str(self._recipe.seq_ordering) == "default":  # just these come together again
            self._together[entries.tobytes()] = num_seqs

    def take_counts(self, counts: list[EntryCounts]) -> None:
        """Take the sequence counts of all entries of the file list; those of the files are kept for other programs."""
        self._counts = np.array([num_seqs for num_seqs, _, _ in counts], dtype=np.int64)
        self._is_counted = True
        for entry, (_, num_stored, num_frames) in enumerate(counts):
            self._table.note_counts(entry, num_stored, num_frames)
        self._table.save()

    @property
    def total_num_seqs(self) -> int | None:
        """How many sequences all files hold, if they were counted."""
        return int(self._counts.sum()) if self._is_counted else None

    # --- copies ---

    def __reduce__(self) -> tuple[Any, ...]:
        """Make a copy that need not find out again what is known, or cannot, in a worker that knows no ranks."""
        ranks = self.ranks  # a worker may be started before an epoch has begun here
        if ranks is None and self._options.shards_files:
            ranks = self._find_ranks()
        if ranks is None or ranks.world_size == 1:
            ranks = self._carried
        counts = self._counts.copy() if self._is_counted else None
        return _made_again, (self.trees, self._options, self._name, self._sizes, ranks, counts)

    def know(self, sizes: NDArray[np.int64] | None, ranks: Ranks | None, counts: NDArray[np.int64] | None) -> None:
        """Take over what another object knows."""
        self._sizes, self._carried = sizes, ranks
        if counts is not None:
            self._counts, self._is_counted = counts, True


def _made_again(trees: list[FileTree], options: ShareOptions, name: str, *known: Any) -> FileShare:
    made = FileShare(trees, options, name)
    made.know(*known)
    return made


def _join_shards(given: tuple[int, int], ranks: Ranks, where: str) -> tuple[int, int]:
    """Return (number of shards, which one) of a dataset that shards by rank and was given shards, too.

    Exactly one level shards. The given ones may be the same as the ranks, or divide the share of each rank further, as
    the workers of a `MultiProcDataset` with "dedicated" do: then they stand for both.

    Raises:
        ConfigError: They contradict each other.
    """
    num_shards, shard_index = given
    if num_shards == 1:
        return ranks.world_size, ranks.rank
    if num_shards % ranks.world_size == 0 and shard_index // (num_shards // ranks.world_size) == ranks.rank:
        return given
    raise ConfigError(
        f"distrib_shard_files=True finds rank {ranks.rank} of {ranks.world_size} ({ranks.source}), but "
        f"_shard_index={shard_index} of _num_shards={num_shards} was given",
        where=where,
        fix="leave out _num_shards and _shard_index, or set distrib_shard_files=False",
    )

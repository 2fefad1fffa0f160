"""The options of a dataset, by their RETURNN-compatible names: checked, and as attributes that can be set later."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import Chunking, ChunkingFunction, NumbersDict, parse_chunking, parse_context_window
from headrace.errors import ConfigError, did_you_mean
from headrace.exports import refuse_departed
from headrace.order import OrderPlanner, OrderRecipe, Policy
from headrace.sources.naming import options_of

from ..checks import check_count, check_flag, check_path, check_share, check_window
from ..corpus import read_wanted_tags

SeqOrdering = str | Policy | Callable[..., "str | Policy"]


class DatasetOptions:
    """The options of a dataset: see `Dataset` for the arguments."""

    supports_window = False
    supports_frame_shuffling = False

    def __init__(
        self,
        name: str | None = None,
        window: int = 1,
        context_window: Any = None,
        chunking: Any = None,
        seq_ordering: SeqOrdering = "default",
        fixed_random_seed: int | None = None,
        random_seed_offset: int | None = None,
        partition_epoch: int | None = None,
        repeat_epoch: int | None = None,
        seq_list_filter_file: str | Path | None = None,
        unique_seq_tags: bool = False,
        seq_order_seq_lens_file: str | Path | None = None,
        shuffle_frames_of_nseqs: int = 0,
        min_chunk_size: int | Mapping[str, int] = 0,
        chunking_variance: float = 0,
        estimated_num_seqs: int | None = None,
        _num_shards: int = 1,
        _shard_index: int = 0,
        **unknown: Any,
    ) -> None:
        if unknown:
            option, cls = next(iter(unknown)), type(self)
            refuse_departed(option, f"the option {option!r} of {cls.__name__}")
            fix = did_you_mean(option, options_of(cls))
            raise TypeError(f"{cls.__name__} has no option {option!r}\n  fix: {fix}")  # as Python's own
        self.name = name or f"dataset_id{id(self)}"
        self.window = check_window(window, supported=self.supports_window, owner=type(self).__name__)
        self.shuffle_frames_of_nseqs = check_count("shuffle_frames_of_nseqs", shuffle_frames_of_nseqs)
        if shuffle_frames_of_nseqs and not self.supports_frame_shuffling:
            raise ConfigError(
                f"{type(self).__name__} cannot shuffle frames (shuffle_frames_of_nseqs={shuffle_frames_of_nseqs})",
                fix="use a dataset of the CachedDataset family, or leave the option out",
            )
        self.context_window = parse_context_window(context_window)
        self.chunking = chunking
        self.min_chunk_size = NumbersDict(min_chunk_size)
        self.chunking_variance = check_share("chunking_variance", chunking_variance)
        self.seq_list_filter_file = check_path("seq_list_filter_file", seq_list_filter_file)
        self.seq_order_seq_lens_file = check_path("seq_order_seq_lens_file", seq_order_seq_lens_file)
        self.unique_seq_tags = check_flag("unique_seq_tags", unique_seq_tags)
        self.labels: dict[str, Sequence[str]] = {}
        self.weights: dict[int, float] = {}
        self._drop_seed = 0
        self._rnd_seq_drop: random.Random | None = None
        self.order_version = 0
        self.seeds_by_tag = False  # see `seed_by_tag`
        self._order_options: dict[str, Any] = {}  # those that were set since it was made
        self._epoch: int | None = None
        self._unsettled_shard: tuple[int, int] | None = None  # assigned, and not in agreement yet
        self._estimated_num_seqs = estimated_num_seqs
        self._recipe = OrderRecipe(
            seq_ordering=seq_ordering,
            fixed_random_seed=fixed_random_seed,
            random_seed_offset=random_seed_offset,
            partition_epoch=partition_epoch,
            repeat_epoch=repeat_epoch,
            num_shards=_num_shards,
            shard_index=_shard_index,
        )
        self._seq_ordering = seq_ordering
        self._planner = OrderPlanner(self._recipe)
        # Read now and kept: a file that changes between two sub-epochs must not change what they divide.
        self._wanted_tags = None if self.seq_list_filter_file is None else read_wanted_tags(self.seq_list_filter_file)
        self._keep: NDArray[np.bool_] | None = None
        self._file_lengths: NDArray[Any] | None = None

    # --- options by their RETURNN-compatible names ---

    @property
    def order_recipe(self) -> OrderRecipe:
        """The options that make the order."""
        return self._recipe

    def _change_recipe(self, **changes: Any) -> None:
        """Set options after construction, as sub-classes do; takes effect with the next `init_seq_order`."""
        self._recipe = dataclasses.replace(self._recipe, **changes)
        self._planner = OrderPlanner(self._recipe)

    @property
    def seq_ordering(self) -> SeqOrdering:
        """The ordering as it was given: text, a policy, or a function."""
        return self._seq_ordering

    @seq_ordering.setter
    def seq_ordering(self, value: SeqOrdering) -> None:
        self._change_recipe(seq_ordering=value)
        self._order_options["seq_ordering"] = value
        self._seq_ordering = value

    @property
    def partition_epoch(self) -> int:
        """Number of sub-epochs of a full pass."""
        return self._recipe.num_sub_epochs

    @partition_epoch.setter
    def partition_epoch(self, value: int | None) -> None:
        self._change_recipe(partition_epoch=value)
        self._order_options["partition_epoch"] = value

    @property
    def repeat_epoch(self) -> int:
        """How often the order is given in one epoch."""
        return self._recipe.num_repeats

    @repeat_epoch.setter
    def repeat_epoch(self, value: int | None) -> None:
        self._change_recipe(repeat_epoch=value)
        self._order_options["repeat_epoch"] = value

    @property
    def fixed_random_seed(self) -> int | None:
        """The seed of every epoch, if fixed."""
        return self._recipe.fixed_random_seed

    @fixed_random_seed.setter
    def fixed_random_seed(self, value: int | None) -> None:
        self._change_recipe(fixed_random_seed=value)
        self._order_options["fixed_random_seed"] = value

    @property
    def random_seed_offset(self) -> int:
        """What is added to the number of the full epoch to give its seed."""
        return self._recipe.random_seed_offset or 0

    @random_seed_offset.setter
    def random_seed_offset(self, value: int | None) -> None:
        self._change_recipe(random_seed_offset=value)
        self._order_options["random_seed_offset"] = value

    @property
    def num_shards(self) -> int:
        """Number of shards of each sub-epoch."""
        return self._recipe.num_shards

    @property
    def shard_index(self) -> int:
        """Which of the shards this is."""
        return self._recipe.shard_index

    # RETURNN's loader for PyTorch reads these two names of a dataset to share it out to the workers, and classes that
    # are written for RETURNN assign them, one after the other: they count from the next `init_seq_order` on.
    @property
    def _num_shards(self) -> int:
        return self.num_shards if self._unsettled_shard is None else self._unsettled_shard[0]

    @_num_shards.setter
    def _num_shards(self, value: int) -> None:
        self._assign_shard(check_count("_num_shards", value, minimum=1), self._shard_index)

    @property
    def _shard_index(self) -> int:
        return self.shard_index if self._unsettled_shard is None else self._unsettled_shard[1]

    @_shard_index.setter
    def _shard_index(self, value: int) -> None:
        self._assign_shard(self._num_shards, check_count("_shard_index", value))

    def _assign_shard(self, num_shards: int, shard_index: int) -> None:
        """Take a shard, or wait for the other half of it: a shard 3 of 1 may become one of 4."""
        if shard_index < num_shards:
            self._unsettled_shard = None
            self._take_shard(num_shards, shard_index)
        else:
            self._unsettled_shard = num_shards, shard_index

    def _check_shard(self) -> None:
        if self._unsettled_shard is not None:
            num_shards, shard_index = self._unsettled_shard
            raise ConfigError(
                f"_shard_index={shard_index} is none of the {num_shards} shards that _num_shards says",
                where=f"dataset {self.name!r}",
                fix="assign both: _shard_index is 0 .. _num_shards - 1",
            )

    def set_sharding(self, num_shards: int, shard_index: int) -> None:
        """Make this dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        self._unsettled_shard = None
        self._take_shard(num_shards, shard_index)

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Do what `set_sharding` says, which a sub-class may override to assign `_num_shards` and `_shard_index`."""
        self._change_recipe(num_shards=num_shards, shard_index=shard_index)

    @property
    def chunking(self) -> Chunking | ChunkingFunction | None:
        """How `iterate_seqs` cuts sequences: parsed, or the function that was given; `None` if it does not."""
        if self.custom_chunking_func is not None:
            return self.custom_chunking_func
        if not self.chunk_size:  # whatever the step: nothing is cut
            return None
        return parse_chunking((self.chunk_size, self.chunk_step))

    @chunking.setter
    def chunking(self, value: Any) -> None:
        """Set it in any of the forms that the constructor takes."""
        parsed = parse_chunking(value)
        self.chunk_size: Any = 0
        self.chunk_step: Any = 0
        self.custom_chunking_func: ChunkingFunction | None = None
        if isinstance(parsed, Chunking):
            self.chunk_size, self.chunk_step = parsed.size, parsed.step
        else:
            self.custom_chunking_func = parsed

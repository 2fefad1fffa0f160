"""`Orders`: the options of a dataset that say which sequences an epoch has, and in which order."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError
from headrace.files import read_seq_lens, read_tag_list
from headrace.order import OrderPlanner, OrderRecipe, Policy

from .checks import check_flag, check_path
from .digests import digest_text, recipe_text

SeqOrdering = str | Policy | Callable[..., "str | Policy"]
RECIPE_OPTIONS = ("fixed_random_seed", "random_seed_offset", "partition_epoch", "repeat_epoch")

_LOGGER = logging.getLogger("headrace.datasets")
_filters_warned_of: set[str] = set()  # so that each is said once in a process


class Orders:
    """Options of orders, as `Dataset` takes them, and the planner that makes these.

    Args:
        options: Options by name; those that are missing have their defaults.

    Attributes:
        seq_ordering: The ordering as it was given.
        recipe: What the planner makes of it, and of the numbers.
        planner: Keeps the last order.
        filter_file: `seq_list_filter_file`.
        wanted_tags: Its tags, read once: a file that changes between two sub-epochs must not change what they divide.
        lengths_file: `seq_order_seq_lens_file`.
        has_unique_tags: `unique_seq_tags`.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.seq_ordering: SeqOrdering = options.get("seq_ordering", "default")
        given = {name: options[name] for name in RECIPE_OPTIONS if name in options}
        shard = {"num_shards": options.get("_num_shards", 1), "shard_index": options.get("_shard_index", 0)}
        self.recipe = OrderRecipe(seq_ordering=self.seq_ordering, **given, **shard)
        self.planner = OrderPlanner(self.recipe)
        self.filter_file = check_path("seq_list_filter_file", options.get("seq_list_filter_file"))
        self.lengths_file = check_path("seq_order_seq_lens_file", options.get("seq_order_seq_lens_file"))
        self.has_unique_tags = check_flag("unique_seq_tags", options.get("unique_seq_tags", False))
        self.wanted_tags = None if self.filter_file is None else frozenset(read_tag_list(self.filter_file))

    def changed(self, **options: Any) -> Self:
        """Return these options but for some others: those of a recipe, and `unique_seq_tags`."""
        made = copy.copy(self)
        made.has_unique_tags = check_flag("unique_seq_tags", options.pop("unique_seq_tags", self.has_unique_tags))
        made.seq_ordering = options.get("seq_ordering", self.seq_ordering)
        made.recipe = dataclasses.replace(self.recipe, **options)
        made.planner = OrderPlanner(made.recipe)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "planner": OrderPlanner(self.recipe)}  # without the last order

    def texts(self, epoch: int) -> list[str]:
        """Return texts of all that these options say of the order of an epoch."""
        texts = [recipe_text(self.recipe, epoch), f"unique {self.has_unique_tags}"]
        if self.wanted_tags is not None:
            texts.append(f"kept {digest_text(' '.join(sorted(self.wanted_tags)))}")
        return texts

    def mask(self, tags: Sequence[str]) -> NDArray[np.bool_]:
        """Return `bool[N]`: whether each tag is wanted. Those that the corpus lacks are legal, and logged once."""
        wanted, where = self.wanted_tags or frozenset(), str(self.filter_file)
        mask = np.fromiter((tag in wanted for tag in tags), dtype=bool, count=len(tags))
        num_kept = int(np.count_nonzero(mask))
        if num_kept < len(wanted) and where not in _filters_warned_of:
            _filters_warned_of.add(where)
            _LOGGER.warning(
                "the filter names %d tags, and keeps %d of %d sequences: %s", len(wanted), num_kept, len(tags), where
            )
        return mask

    def lengths(self, tags: Sequence[str]) -> NDArray[Any]:
        """Return `int[N]` or `float[N]`: the length that the file gives for each tag.

        Raises:
            SourceError: A tag of the corpus is not in the file.
        """
        assert self.lengths_file is not None
        lens = read_seq_lens(Path(self.lengths_file))
        try:
            return np.array([lens[tag] for tag in tags]) if len(tags) else np.zeros(0, dtype=np.int64)
        except KeyError as error:
            raise SourceError(
                f"no length for the tag {error.args[0]!r}",
                where=f"{self.lengths_file} ({len(lens)} lengths, the corpus has {len(tags)} sequences)",
                fix="give a length for each tag of the corpus in seq_order_seq_lens_file",
            ) from None

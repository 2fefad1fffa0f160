"""Who may position a dataset: each has one current order, so a dataset that is made of others has these for itself.

A dataset that somebody hands over as an object is copied, from its constructor's arguments, and the copy is what is
read; files, indices and arrays are shared. So the same object can be a part of several datasets, or twice of one, and
its owner can read it meanwhile. One that cannot be copied is taken as it is, by one owner only.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Mapping
from typing import Any

from headrace.errors import ConfigError, HeadraceError, takes_note

from .base import Dataset, Owned, with_copied_parts
from .configs import DatasetConfig, init_dataset, resolve_class


def open_part(
    config: DatasetConfig | Owned,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
    owner: object = None,
) -> Dataset:
    """Return an initialized dataset that nobody else has.

    Args:
        config: As for `init_dataset`, whose other arguments these are; or a dataset that is `Owned`, which is taken.
        default_kwargs: See `init_dataset`.
        parent_dataset: See `init_dataset`.
        owner: Who reads it: matters for a dataset that cannot be copied; `None`: somebody, for ever.

    Raises:
        ConfigError: An option is wrong; or the dataset cannot be copied, and has an owner.
    """
    while callable(config) and not isinstance(config, Dataset):
        config = config()
    if isinstance(config, Owned):
        return init_dataset(config.dataset)
    if isinstance(config, Dataset):
        return init_dataset(_own(config, owner))
    return init_dataset(config, default_kwargs=default_kwargs, parent_dataset=parent_dataset)


def open_apart(config: Any, *, in_thread: bool = False) -> Dataset:
    """Return an initialized dataset of a config, or a copy of one; the dataset itself if it cannot be copied.

    For who reads a dataset so that it does not matter if somebody else does between two reads.

    Args:
        config: As for `init_dataset`.
        in_thread: Whether it is for one of several threads: then it must be a copy.

    Raises:
        Exception: What its constructor raises, if it cannot be copied, and must be.
    """
    while callable(config) and not isinstance(config, Dataset):
        config = config()
    if isinstance(config, Owned):
        return init_dataset(config.dataset)
    if not isinstance(config, Dataset):
        return init_dataset(config if _copies_parts(config) else with_copied_parts(config))
    try:
        made = copy.copy(config)
    except Exception as error:
        if in_thread:
            takes_note(error, f"each thread needs a copy of the {type(config).__name__} {config.name!r}")
            raise
        made = config
    return init_dataset(made)


def _copies_parts(config: Any) -> bool:
    """Whether the class that a config names takes its parts by `open_part`, as all of ours do."""
    if not isinstance(config, Mapping) or "class" not in config:
        return True
    return resolve_class(config["class"]).__module__.startswith("headrace.")


def _own(dataset: Dataset, owner: object) -> Dataset:
    try:
        return copy.copy(dataset)
    except Exception as error:
        if dataset._claim is not None and dataset._claim() not in (None, owner):
            raise ConfigError(
                f"a {type(dataset).__name__} is a part of two datasets, and it cannot be copied: {error}",
                where=f"dataset {dataset.name!r}",
                fix="make one for each of them, by a config; or let copy.copy work: with the constructor's arguments",
            ) from error
    dataset._claim = _for_ever if owner is None else weakref.ref(owner)
    return dataset


def taken_away(dataset: Dataset, reader: object) -> HeadraceError:
    """Return what is raised if a dataset is not where its reader left it: only one that cannot be copied can be so."""
    return HeadraceError(
        f"somebody else has started or ended an epoch of a dataset that is read as a part of {reader}",
        where=f"{type(dataset).__name__} {dataset.name!r}",
        fix="leave it to its owner, or give a config, of which each makes its own",
    )


def _for_ever() -> object:
    return _for_ever

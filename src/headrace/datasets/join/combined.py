"""`CombinedDataset` and `ConcatDataset`: different sequences, read as one dataset.

Both are one corpus, see `joint.py`: each of their sub-datasets knows its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, check_count, did_you_mean

from ..base import Dataset, Owned
from ..configs import DatasetConfig
from ..parts import check_indexed, check_no_cycle, open_datasets
from .joint import JointDataset
from .layout import KeySource, make_layout, parse_data_map
from .order import GumbelScale


class CombinedDataset(JointDataset):
    """Several datasets with different sequences, such as those of several tasks or corpora.

    Each sequence is of one sub-dataset; the data keys that this has not are arrays without frames. By default, the
    sub-datasets come one after the other, sorted by name, each in its own order (its `seq_ordering`, sub-epochs,
    repeats); any other ordering is laid over that. Beside those of every dataset there are `random_dataset` (a dataset
    is drawn each time, the order inside is kept), `interleave` (all of them are equally far at any time) and `reversed`
    (the last dataset first).

    Args:
        datasets: Name -> config of a sub-dataset. Only those are opened that `data_map` names.
        data_map: (sub-dataset, its data key) -> data key; or a list of [sub-dataset, its data key, data key].
        sampling_sizes: How many sequences of each sub-dataset a full epoch has: a number for all, or by sub-dataset.
            Full epoch E takes those at positions (E - 1) * size to E * size (exclusive, modulo its number of sequences)
            of the sub-dataset's order in E. If that is the same in each epoch, E goes on where E - 1 has stopped; a
            shuffled sub-dataset has another order each time, so that some sequences come again before others came at
            all. `MixDataset` goes on in one pass.
        data_dims: Data key -> (dim, ndim): what must be found. Says also which number of classes holds for a data key
            that sub-datasets have with different ones.
        data_dtypes: Data key -> dtype, likewise; only logged if something else is found.
        window: Only 1.
        interleave_gumbel_scale: For `interleave`: noise, see `Interleave`.
        **kwargs: See `Dataset`. `partition_epoch`, `repeat_epoch`, filters and shards divide the joint order.

    Raises:
        ConfigError: An option is wrong, names a sub-dataset or data key that does not exist, a data key has two
            layouts, or a sub-dataset does not know its corpus.
    """

    def __init__(
        self,
        datasets: Mapping[str, DatasetConfig],
        data_map: Mapping[tuple[str, str], str] | Sequence[Sequence[str]],
        sampling_sizes: int | Mapping[str, int] | None = None,
        data_dims: Mapping[str, tuple[int, int]] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
        window: int = 1,
        interleave_gumbel_scale: GumbelScale = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(interleave_gumbel_scale=interleave_gumbel_scale, window=window, **kwargs)
        if not isinstance(datasets, Mapping) or not datasets:
            raise ConfigError(
                f"datasets must be a dict sub-dataset -> config, got {datasets!r}",
                fix='write {"speech": {"class": "HDFDataset", ...}, ...}',
            )
        check_no_cycle(datasets)
        entries = parse_data_map(data_map, datasets)
        names = sorted({entry.part for entry in entries})
        sizes = _checked_sizes(sampling_sizes, names)
        opened = open_datasets({name: datasets[name] for name in names}, self, kwargs.get("random_seed_offset"))
        _check_parts(opened, self.name)
        layout = make_layout(opened, entries, data_dims, data_dtypes)
        self._join(opened, layout, sizes)
        if type(self).__init__ is CombinedDataset.__init__:  # as in HDFDataset: a copy may be made in another folder
            self._ctor_args = (
                (),
                {
                    **kwargs,
                    "datasets": {name: Owned(dataset) for name, dataset in opened.items()},
                    "data_map": [list(entry) for entry in entries],
                    "sampling_sizes": sizes,
                    "data_dims": data_dims,
                    "data_dtypes": data_dtypes,
                    "interleave_gumbel_scale": interleave_gumbel_scale,
                },
            )


class ConcatDataset(JointDataset):
    """Several datasets with the same data keys, one after the other, each in its own order.

    Any ordering can be laid over it, as in `CombinedDataset`.

    Args:
        datasets: Configs of the sub-datasets.
        **kwargs: See `Dataset`; `partition_epoch`, `repeat_epoch`, filters and shards divide the joint order.

    Raises:
        ConfigError: An option is wrong, the sub-datasets have not the same data keys and layout, or one does not know
            its corpus.
    """

    def __init__(self, datasets: Sequence[DatasetConfig], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(datasets, list | tuple) or not datasets:
            raise ConfigError(
                f"datasets must be a list of configs, got {datasets!r}",
                fix='write [{"class": "HDFDataset", ...}, ...]',
            )
        check_no_cycle(datasets)
        configs = {str(number): config for number, config in enumerate(datasets)}
        opened = open_datasets(configs, self, kwargs.get("random_seed_offset"))
        _check_parts(opened, self.name)
        self._join(opened, make_layout(opened, same_keys(opened)))
        if type(self).__init__ is ConcatDataset.__init__:
            self._ctor_args = ((), {**kwargs, "datasets": list(map(Owned, opened.values()))})


def _check_parts(datasets: Mapping[str, Dataset], name: str) -> None:
    """Refuse sub-datasets that do not know their corpus, or are shards, so that two levels would divide the data."""
    check_indexed(datasets, name)
    for part, dataset in datasets.items():
        if dataset.num_shards > 1:
            raise ConfigError(
                f"two levels would shard: the sub-dataset {part!r} is shard {dataset.shard_index} of "
                f"{dataset.num_shards} already",
                fix="give _num_shards and _shard_index to the whole, and only to it",
            )


def _checked_sizes(sampling_sizes: Any, names: Sequence[str]) -> dict[str, int] | None:
    """Return sub-dataset -> number of sequences."""
    if sampling_sizes is None:
        return None
    given = dict(sampling_sizes) if isinstance(sampling_sizes, Mapping) else dict.fromkeys(names, sampling_sizes)
    for name in given:
        if name not in names:
            raise ConfigError(
                f"sampling_sizes names the sub-dataset {name!r}, which data_map does not",
                fix=did_you_mean(str(name), names),
            )
    missing = [name for name in names if name not in given]
    if missing:
        raise ConfigError(
            f"sampling_sizes has no size for the sub-dataset {missing[0]!r}", fix="give one for each, or one number"
        )
    sizes = {name: check_count(f"sampling_sizes[{name!r}]", given[name]) for name in names}
    if not any(sizes.values()):
        raise ConfigError(f"sampling_sizes takes no sequence at all: {sampling_sizes!r}", fix="give one a size")
    return sizes


def same_keys(datasets: Mapping[str, Dataset]) -> list[KeySource]:
    """Return the data map of datasets that have the same data keys; those that show none have no sequences, or any."""
    known = {name: data_keys for name, dataset in datasets.items() if (data_keys := _keys_of(dataset))}
    if not known:
        raise ConfigError(
            "no sub-dataset tells its data keys before it is read",
            fix="let them set num_outputs",
        )
    first, data_keys = next(iter(known.items()))
    for name, others in known.items():
        if set(others) != set(data_keys):
            raise ConfigError(
                f"the sub-datasets have different data keys: number {first} has {sorted(data_keys)}, number {name} has "
                f"{sorted(others)}",
                fix="use CombinedDataset, whose data_map says what belongs together",
            )
    return [KeySource(name, key, key) for name in datasets for key in data_keys]


def _keys_of(dataset: Dataset) -> list[str]:
    return [] if dataset.num_outputs is None else dataset.get_data_keys()

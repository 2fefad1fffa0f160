"""`CombinedDataset` and `ConcatDataset`: the sequences of several datasets as one corpus with random access.

One order is laid over the sequences that the parts offer in an epoch; each part is started with its share of it when it
is first read, and read at its own positions. Corpus indices are those of the parts, one part after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError, check_count
from headrace.specs import DataSpec

from ..configs import DatasetConfig
from ..corpus import Corpus
from ..ordered import OrderedDataset
from ..parts import check_indexed, check_no_cycle, open_corpora
from .base import check_configs, check_names
from .joint import JointCorpus
from .layout import JointLayout, KeySource, make_layout, parse_data_map, same_keys
from .order import GumbelScale, parse_joint_ordering


class JointDataset(OrderedDataset):
    """The sequences of several datasets, each of which knows its corpus.

    Args:
        interleave_gumbel_scale: See `Interleave`.
        **kwargs: See `Dataset`. `seq_ordering` is laid over what the sub-datasets offer by their own orders.
    """

    def __init__(self, *, interleave_gumbel_scale: GumbelScale = None, **kwargs: Any) -> None:
        self._gumbel_scale = interleave_gumbel_scale
        ordering = kwargs.get("seq_ordering", "default")
        super().__init__(**{**kwargs, "seq_ordering": parse_joint_ordering(ordering, interleave_gumbel_scale)})
        self._orders.seq_ordering = ordering

    def _open(
        self,
        datasets: Mapping[str, DatasetConfig],
        entries: Sequence[KeySource] | None,
        data_dims: Mapping[str, Any] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Corpus], JointLayout]:
        """Open the sub-datasets, and find their data keys.

        Args:
            datasets: Their configs, in the order of the joint corpus.
            entries: Where each data key comes from; `None`: all of them have the same ones.
            data_dims: See `CombinedDataset`.
            data_dtypes: See `CombinedDataset`.

        Raises:
            ConfigError: A config is wrong, one does not know its corpus, or a data key has two layouts.
        """
        parts = open_corpora(datasets, self)
        check_indexed(parts, self.name)
        sources = same_keys(parts) if entries is None else entries
        return parts, make_layout(parts, sources, data_dims or {}, data_dtypes or {})

    def _join(
        self,
        datasets: Mapping[str, DatasetConfig],
        entries: Sequence[KeySource] | None,
        data_dims: Mapping[str, Any] | None = None,
        data_dtypes: Mapping[str, str] | None = None,
        sampling_sizes: Mapping[str, int] | None = None,
    ) -> None:
        """Read the sub-datasets as one, see `_open`.

        Raises:
            ConfigError: One is a shard, so that two levels would divide the data.
        """
        parts, layout = self._open(datasets, entries, data_dims, data_dtypes)
        for name, part in parts.items():
            recipe = part.orders.recipe
            if recipe.num_shards > 1:
                raise ConfigError(
                    f"two levels would shard: the sub-dataset {name!r} is shard {recipe.shard_index} of "
                    f"{recipe.num_shards} already",
                    fix="give _num_shards and _shard_index to the whole, and only to it",
                )
        sizes, scale = sampling_sizes, self._gumbel_scale
        self._set_corpus(JointCorpus(self.name, self._orders, parts, layout, sampling_sizes=sizes, gumbel_scale=scale))

    def _layout_of(self, key: str) -> DataSpec | None:
        return self._read.spec_of(key)


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
        check_configs(datasets)
        entries = parse_data_map(data_map, datasets)
        names = sorted({entry.part for entry in entries})
        self.sampling_sizes = _checked_sizes(sampling_sizes, names)
        self._join({name: datasets[name] for name in names}, entries, data_dims, data_dtypes, self.sampling_sizes)


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
        self._join({str(number): config for number, config in enumerate(datasets)}, None)


def _checked_sizes(sampling_sizes: Any, names: Sequence[str]) -> dict[str, int] | None:
    """Return sub-dataset -> number of sequences."""
    if sampling_sizes is None:
        return None
    given = dict(sampling_sizes) if isinstance(sampling_sizes, Mapping) else dict.fromkeys(names, sampling_sizes)
    check_names("sampling_sizes", given, "sub-dataset", names)
    for name in names:
        if name not in given:
            fix = "give one for each, or one number"
            raise ConfigError(f"sampling_sizes has no size for the sub-dataset {name!r}", fix=fix)
    sizes = {name: check_count(f"sampling_sizes[{name!r}]", given[name]) for name in names}
    if not any(sizes.values()):
        raise ConfigError(f"sampling_sizes takes no sequence at all: {sampling_sizes!r}", fix="give one a size")
    return sizes

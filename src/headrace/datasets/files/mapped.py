"""Datasets over what is in memory already, or over any object with `__len__` and `__getitem__`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order import ArrayOrder, Order, RepeatedOrder, occurrences, restrict_order, slice_bounds
from headrace.sources import SORT_LENGTHS, MapSource, MemorySource, Source
from headrace.sources.mapped import LearntSpecs
from headrace.specs import DataSpec

from ..cached import CachedDataset, SourceCorpus
from ..checks import check_indices, declared_spec
from ..digests import digest_array


class MapDatasetBase:
    """Optional base class of objects that `MapDataset` wraps. Any object with the same methods will do.

    Define `__len__` and `__getitem__(i) -> dict[str, array]`; optionally `get_seq_len(i) -> int`, without which orders
    that sort are refused, `get_seq_tag(i) -> str`, and `get_seq_order(epoch) -> Sequence[int]`, which then replaces
    `seq_ordering` and `partition_epoch`.

    Args:
        data_types: Data key -> {"shape": (None, 40), "dtype": "float32"} (None first is time), or {"dim", "sparse",
            ...}.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> class Ramps(hr.MapDatasetBase):
        ...     def __len__(self):
        ...         return 3
        ...
        ...     def __getitem__(self, i):
        ...         return {"data": np.arange(4 - i, dtype=np.float32)}
        ...
        ...     def get_seq_len(self, i):
        ...         return 4 - i
        >>> corpus = hr.MapDataset(Ramps(data_types={"data": {"shape": (None,)}}), seq_ordering="sorted")
        >>> [seq["data"].tolist() for seq in corpus.epoch(1)]
        [[0.0, 1.0], [0.0, 1.0, 2.0], [0.0, 1.0, 2.0, 3.0]]
    """

    def __init__(self, data_types: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.data_types = data_types


class FromListDataset(MapDatasetBase):
    """A list of sequences as a map-style dataset.

    Args:
        data_list: Sequences, each data key -> array.
        sort_data_key: The data key whose length sequences are sorted by.
        **kwargs: See `MapDatasetBase`.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> dataset = hr.FromListDataset([{"data": np.zeros((frames, 2), np.float32)} for frames in (5, 3)])
        >>> corpus = hr.MapDataset(dataset, seq_ordering="reverse")
        >>> [len(seq["data"]) for seq in corpus.epoch(1)]
        [3, 5]
    """

    def __init__(self, data_list: Sequence[Mapping[str, Any]], sort_data_key: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._data_list = data_list
        self._sort_data_key = sort_data_key
        if sort_data_key is not None:
            self.get_seq_len = self._get_seq_len  # only then: without lengths, sorting is refused

    def __len__(self) -> int:
        return len(self._data_list)

    def __getitem__(self, corpus_idx: int) -> Mapping[str, Any]:
        return self._data_list[corpus_idx]

    def _get_seq_len(self, corpus_idx: int) -> int:
        return len(self._data_list[corpus_idx][str(self._sort_data_key)])


class MapDataset(CachedDataset):
    """Sequences of any object with `__len__` and `__getitem__`, such as a torch-style dataset.

    Args:
        map_dataset: The object, or a class or function that returns it.
        data_types: See `MapDatasetBase`; if neither this nor the object says it, the layout is learnt from the first
            item.
        lengths: `int[N]`, what sequences are sorted by, if the object has no `get_seq_len`.
        tags: N tags, if the object has no `get_seq_tag`; default `seq-0`, `seq-1`, ...
        **kwargs: See `CachedDataset` and `Dataset`.
    """

    def __init__(
        self,
        map_dataset: Any,
        *,
        data_types: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        lengths: NDArray[Any] | Sequence[int] | None = None,
        tags: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        is_maker = isinstance(map_dataset, type) or not hasattr(map_dataset, "__getitem__")
        is_made_here = is_maker and callable(map_dataset)
        made = map_dataset() if is_made_here else map_dataset
        specs = data_types if data_types is not None else getattr(made, "data_types", None)
        make = map_dataset if is_made_here else None
        self._set_source(MapSource(made, specs=specs, lengths=lengths, tags=tags, make=make), MapCorpus)

    @property
    def map_dataset(self) -> Any:
        """The object."""
        assert isinstance(self.source, MapSource)
        return self.source.obj


class MapCorpus(SourceCorpus):
    """The items of a map-style object, in the order that it says itself, if it does."""

    def sort_column(self) -> str | None:
        """Return what is sorted by: the lengths that the object gives, if it does."""
        return SORT_LENGTHS if self.index.has_lengths(SORT_LENGTHS) else super().sort_column()

    def _own_order(self, epoch: int) -> Sequence[int] | None:
        assert isinstance(self.source, MapSource)
        return self.source.own_order(epoch)

    def _order_of_epoch(self, epoch: int) -> Order:
        own, recipe = self._own_order(epoch), self.orders.recipe
        if own is None:
            return super()._order_of_epoch(epoch)
        order: Order = ArrayOrder(check_indices(own, self.size(), f"dataset {self.name!r}"))
        order = restrict_order(order, self.order_corpus(epoch))
        start, stop = slice_bounds(len(order), epoch, 1, recipe.num_shards, recipe.shard_index)
        part = order.slice(start, stop)
        return part if recipe.num_repeats == 1 else RepeatedOrder(part, recipe.num_repeats)

    def _count(self, epoch: int, order: Order) -> NDArray[np.int64]:
        return super()._count(epoch, order) if self._own_order(epoch) is None else occurrences(order)

    def order_texts(self, epoch: int) -> list[str]:
        """Return texts of what the order depends on; of one that the object says itself, a digest."""
        texts, own = super().order_texts(epoch), self._own_order(epoch)
        return texts if own is None else [*texts, f"own order {digest_array(np.asarray(self._order_of_epoch(epoch)))}"]


MapDatasetWrapper = MapDataset  # RETURNN's name


class StaticDataset(CachedDataset):
    """Sequences held in memory, with tags `seq-0`, `seq-1`, ...

    Sorting orders use the length of the first data key.

    Args:
        data: Sequences, each data key -> array; all with the same keys, dtypes and axes.
        target_list: The data keys other than "data", in this order; default all, as in the first sequence.
        input_dim: Size of a frame of "data", or its number of classes, if it should not be learnt from the data.
        output_dim: Data key -> dim or (dim, ndim), likewise.
        **kwargs: See `CachedDataset` and `Dataset`.
    """

    def __init__(
        self,
        data: Sequence[Mapping[str, NDArray[Any]]],
        target_list: Sequence[str] | None = None,
        input_dim: int | None = None,
        output_dim: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        data = list(data)
        if target_list is not None and data:
            wanted = [*({"data"} & data[0].keys()), *(key for key in target_list if key != "data")]
            missing = sorted(set(wanted) - set(data[0]))
            if missing:
                raise ConfigError(f"target_list names {missing}, which the data lack: they hold {sorted(data[0])}")
            data = [{key: seq[key] for key in wanted} for seq in data]
        outputs = {} if input_dim is None else {"data": (input_dim, 2)}
        for key, value in (output_dim or {}).items():
            outputs[key] = (value, 1) if isinstance(value, int) else value
        if data:
            self._set_source(MemorySource(data, dims={key: int(dim) for key, (dim, _) in outputs.items()}))
        else:
            self._set_source(MemorySource([], specs={key: declared_spec(*output) for key, output in outputs.items()}))

    @classmethod
    def copy_from_dataset(cls, dataset: Any, start_seq_idx: int = 0, max_seqs: int | None = None) -> Self:
        """Return sequences of another dataset, held in memory.

        Args:
            dataset: One of ours or of RETURNN's, with an active epoch; a `StaticDataset` needs none, and is taken in
                the order of its corpus.
            start_seq_idx: The first sequence to take.
            max_seqs: How many; `None`: all to the end.
        """
        stop = math.inf if max_seqs is None else start_seq_idx + max_seqs
        if isinstance(dataset, StaticDataset):
            last = int(min(stop, len(dataset.source)))
            data = [dataset.source.read_seq(i) for i in range(start_seq_idx, last)]
        else:
            data, seq_idx = [], start_seq_idx
            while seq_idx < stop and dataset.is_less_than_num_seqs(seq_idx):
                dataset.load_seqs(seq_idx, seq_idx + 1)
                data.append({key: np.array(dataset.get_data(seq_idx, key)) for key in dataset.get_data_keys()})
                seq_idx += 1
        outputs = {key: (dataset.get_data_dim(key), ndim) for key, (_, ndim) in dataset.num_outputs.items()}
        return cls(data, target_list=list(data[0]) if data else None, output_dim=outputs)

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; of all before the first."""
        return super().num_seqs if self.order_version or self._epoch is not None else len(self.source)


def dataset_over(data: Any, seq_ordering: str = "default", first: Any = None) -> CachedDataset:
    """Return a dataset over an object that is not a dataset.

    Args:
        data: A `Source`; a list or tuple of dicts of numbers; or another object with `__len__` and `__getitem__`, whose
            items are such dicts.
        seq_ordering: The order.
        first: Item 0 of such an object, if it was read already.
    """
    if isinstance(data, Source):
        return CachedDataset(source=data, seq_ordering=seq_ordering)
    if isinstance(data, list | tuple):
        arrays = [{key: np.asarray(value) for key, value in item.items()} for item in data]
        return StaticDataset(arrays, seq_ordering=seq_ordering, name="list")
    is_learnt = first is not None and getattr(data, "data_types", None) is None
    specs = LearntSpecs.of_item(first) if is_learnt else None
    return MapDataset(data, data_types=specs, seq_ordering=seq_ordering, name=type(data).__name__)

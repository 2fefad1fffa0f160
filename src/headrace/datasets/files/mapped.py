"""Datasets over what is in memory already, or over any object with `__len__` and `__getitem__`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.order import Order, RepeatedOrder, restrict_order, slice_bounds
from headrace.sources import SORT_LENGTHS, MapSource, MemorySource, Source
from headrace.sources.mapped import LearntSpecs
from headrace.specs import DataSpec

from ..cached import CachedDataset
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

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} must define __len__")

    def __getitem__(self, corpus_idx: int) -> Mapping[str, Any]:
        raise TypeError(f"{type(self).__name__} must define __getitem__")


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
        assert self._sort_data_key is not None
        return len(self._data_list[corpus_idx][self._sort_data_key])


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

    _is_made_here = False

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
        if isinstance(map_dataset, type) or not hasattr(map_dataset, "__getitem__"):
            if not callable(map_dataset):
                raise ConfigError(
                    f"map_dataset must have __len__ and __getitem__, got {type(map_dataset).__name__}",
                    where=f"dataset {self.name!r}",
                )
            map_dataset = map_dataset()
            self._is_made_here = True
        self.map_dataset = map_dataset
        specs = data_types if data_types is not None else getattr(map_dataset, "data_types", None)
        self._set_source(MapSource(map_dataset, specs=specs, lengths=lengths, tags=tags))
        self._own_order: Callable[[int], Sequence[int]] | None = getattr(map_dataset, "get_seq_order", None)

    @property
    def _is_made_again(self) -> bool:
        return self._is_made_here or super()._is_made_again  # the function that makes the object is called for each

    def _sort_key(self) -> str | None:
        return SORT_LENGTHS if self.source.index.has_lengths(SORT_LENGTHS) else super()._sort_key()

    @property
    def _plans_order(self) -> bool:
        return self._own_order is None and super()._plans_order

    def _own_order_text(self, epoch: int) -> str:
        if self._own_order is None:
            return super()._own_order_text(epoch)
        return f"own order {digest_array(np.asarray(self._order_of_epoch(epoch)))}"

    def _order_of_epoch(self, epoch: int) -> Order:
        if self._own_order is None:
            return super()._order_of_epoch(epoch)
        num_seqs = len(self.source)
        try:
            own = self._own_order(epoch)
        except NotImplementedError:  # a base class has the method and does not offer it
            self._own_order = None
            return super()._order_of_epoch(epoch)
        order = self._explicit_order(own, num_seqs)
        order = restrict_order(order, self._order_corpus(num_seqs, None))
        start, stop = slice_bounds(len(order), epoch, 1, self.num_shards, self.shard_index)
        part = order.slice(start, stop)
        return part if self.repeat_epoch == 1 else RepeatedOrder(part, self.repeat_epoch)


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
            wanted = [key for key in ("data",) if key in data[0]] + [key for key in target_list if key != "data"]
            missing = sorted(set(wanted) - set(data[0]))
            if missing:
                raise ConfigError(f"target_list names {missing}, which the data lack: they hold {sorted(data[0])}")
            data = [{key: seq[key] for key in wanted} for seq in data]
        dims = {key: value if isinstance(value, int) else int(value[0]) for key, value in (output_dim or {}).items()}
        if input_dim is not None:
            dims["data"] = input_dim
        specs = _declared_specs(input_dim, output_dim or {}) if not data else None
        self._set_source(MemorySource(data, dims=None if specs else dims or None, specs=specs or None))

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
        targets = [key for key in outputs if key != "data"] if not data else [key for key in data[0] if key != "data"]
        return cls(data, target_list=targets, output_dim=outputs)

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current epoch; of all before the first."""
        return super().num_seqs if self.order_version or self._epoch is not None else len(self.source)


def _declared_specs(input_dim: int | None, output_dim: Mapping[str, Any]) -> dict[str, DataSpec]:
    """Return the layout that the options of an empty `StaticDataset` declare."""
    outputs = {**({} if input_dim is None else {"data": (input_dim, 2)}), **output_dim}
    specs = {}
    for key, value in outputs.items():
        dim, ndim = (value, 1) if isinstance(value, int) else value
        if ndim > 1:
            specs[key] = DataSpec("float32", (*[None] * (ndim - 2), dim), dim=dim)
        else:
            specs[key] = DataSpec("int32", sparse=True, dim=dim)
    return specs


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

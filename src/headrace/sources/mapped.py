"""A source over an object with `__len__` and `__getitem__`, such as a torch dataset."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex, GeneratedTags
from headrace.specs import DataSpec

from .base import SORT_LENGTHS, Source, check_corpus_idx, check_data_key, num_frames_of, slice_frames
from .shared.data_types import checked_seq, dtype_of, learn_specs, parse_data_types, with_labels


class LearntSpecs(dict[str, DataSpec]):
    """Layouts that were learnt from an item: every item must have these data keys, and no others."""

    @classmethod
    def of_item(cls, item: Any) -> LearntSpecs:
        """Learn them from item 0."""
        return cls(learn_specs(_item_to_seq(item, None, "item 0"), where="item 0"))


class MapSource(Source):
    """The sequences of a map-style dataset: `obj[i]` is sequence i, `len(obj)` their number.

    An item is a mapping (data key -> value), a tuple of values, or one value; a value is an array, a tensor (anything
    with a `numpy()` method), a number or a list of numbers. A named tuple has its field names as data keys. Another
    tuple has those of `specs`, in their order, else "data" for the first and "classes" for the second value; one
    value alone is "data".

    Optional methods of the object, under the RETURNN-compatible names: `get_seq_tag(i)`, and `get_seq_len(i)`, which
    returns either a dict (data key -> frames, which must be true: what is read is compared with the index), or one
    number by which sequences are sorted, whatever it counts; that one is in the index as the lengths of "seq_len". Both
    are called for all sequences when the index is first asked for.

    Sequence i is taken from the object once for all of its keys where they are read in a row; the last one is kept
    until then. An exception of the object itself passes through.

    Args:
        obj: The object; it must give the same for the same i.
        specs: Layouts, see `parse_data_types`; other keys of an item are left out. A dtype that they do not name is
            that of the array in item 0, which is read for it. If `None`, all is learnt from item 0 (the first axis is
            time; an integer with at most that axis is sparse, with an unknown number of classes), and every item must
            have the same keys. `LearntSpecs` were learnt so before, and item 0 is not read for them again.
        labels: Data key -> class labels; they give a sparse key its number of classes, too.
        tags: Tags; else those of `get_seq_tag`, else "seq-0", "seq-1", ... May repeat.
        lengths: Instead of `get_seq_len`: numbers to sort by, `int[N]`, or a dict (data key -> frames, `int[N]`).
            Without any of these, orders that sort by length are not possible.
        make: What has made the object: each other reader, and each copy in another process, has it make one of its own.

    Raises:
        ConfigError: The object or an argument has the wrong form, or there is no item to learn the specs from.
        SourceError: An item has another layout than the specs or another length than was claimed.

    Examples:
        >>> import headrace as hr
        >>> import numpy as np
        >>> seqs = [{"data": np.zeros((frames, 40), np.float32)} for frames in (3, 5)]
        >>> source = hr.MapSource(seqs, lengths={"data": [3, 5]})
        >>> source.read(1, "data").shape
        (5, 40)
        >>> with hr.SourceDataset(source, seq_ordering="sorted_reverse") as corpus:
        ...     print([seq.tag for seq in corpus.epoch(1)])
        ['seq-1', 'seq-0']
    """

    def __init__(
        self,
        obj: Any,
        *,
        specs: Mapping[str, DataSpec | Mapping[str, Any]] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        tags: Sequence[str] | None = None,
        lengths: Sequence[int] | NDArray[Any] | Mapping[str, Sequence[int] | NDArray[Any]] | None = None,
        make: Callable[[], Any] | None = None,
    ) -> None:
        for method in ("__len__", "__getitem__"):
            if inspect.isclass(obj) or not hasattr(type(obj), method):
                kind = f"the class {obj.__name__}" if inspect.isclass(obj) else f"a {type(obj).__name__}"
                raise ConfigError(
                    f"a map-style dataset has __len__ and __getitem__: {kind} is none",
                    fix="give an instance that has both",
                )
        self._obj, self._make = obj, make
        self._num_seqs = len(obj)
        if tags is not None and len(tags) != self._num_seqs:
            raise ConfigError(f"there are {len(tags)} tags for {self._num_seqs} sequences")
        self._tags, self._lengths = tags, lengths
        self._learnt = specs is None or isinstance(specs, LearntSpecs)
        self._last: tuple[int, dict[str, NDArray[Any]], set[str]] | None = None  # and the keys that were read of it
        self._index: CorpusIndex | None = None
        self.labels = {key: list(values) for key, values in (labels or {}).items()}
        self.specs = with_labels(self._find_specs(specs), self.labels)
        if SORT_LENGTHS in self.specs:
            raise ConfigError(f"{SORT_LENGTHS!r} cannot be a data key: it names what sequences are sorted by")
        self._expected = [_Expected.of(key, spec) for key, spec in self.specs.items()]
        self._claims: dict[str, NDArray[Any]] = {}  # lengths of the index, once it is made: they must be true

    def _find_specs(self, given: Mapping[str, DataSpec | Mapping[str, Any]] | None) -> dict[str, DataSpec]:
        """Return declared layouts, with the dtypes of item 0 where they name none; without any, those of item 0."""
        if isinstance(given, LearntSpecs):
            return dict(given)
        if given is None and self._num_seqs == 0:
            raise ConfigError(
                "there is no item to learn the layout of the data from",
                where=f"an empty {type(self._obj).__name__}",
                fix='give specs, for example {"data": {"shape": (None, 40)}, "classes": {"sparse": True, "dim": 10}}',
            )
        if given is None:
            return LearntSpecs.of_item(self._obj[0])
        specs = parse_data_types(given)
        unnamed = [key for key, options in given.items() if isinstance(options, Mapping) and "dtype" not in options]
        if not unnamed or not self._num_seqs:
            return specs
        item = _item_to_seq(self._obj[0], list(specs), "item 0")
        for key in unnamed:
            dtype = dtype_of(item.get(key))
            if dtype is not None and not (specs[key].sparse and dtype.kind not in "iu"):  # else reading says it
                specs[key] = replace(specs[key], dtype=dtype.name)
        return specs

    @property
    def index(self) -> CorpusIndex:
        """Tags, and lengths if they are known; the first access asks the object for them, O(number of sequences)."""
        if self._index is None:
            tags: Any = self._tags
            if tags is None:
                by_object, num_seqs = hasattr(self._obj, "get_seq_tag"), self._num_seqs
                tags = [self.tag(i) for i in range(num_seqs)] if by_object else GeneratedTags(num_seqs)
            self._index = CorpusIndex.from_columns(tags=tags, lengths=self._all_lengths())
            self._claims = {key: self._index.lengths(key) for key in self.specs if self._index.has_lengths(key)}
        return self._index

    def __len__(self) -> int:
        return self._num_seqs

    def tag(self, corpus_idx: int) -> str:
        """Return the tag of one sequence."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        if self._tags is not None:
            return _checked_tag(self._tags[corpus_idx], f"tags[{corpus_idx}]")
        get_seq_tag = getattr(self._obj, "get_seq_tag", None)
        if get_seq_tag is None:
            return f"seq-{corpus_idx}"
        return _checked_tag(get_seq_tag(corpus_idx), f"get_seq_tag({corpus_idx})")

    def tags_of(self, corpus_indices: NDArray[Any]) -> list[str]:
        """Return the tags of several sequences; the object is asked for these only."""
        return [self.tag(corpus_idx) for corpus_idx in corpus_indices.tolist()]

    def _all_lengths(self) -> dict[str, NDArray[Any]]:
        """Gather the claimed lengths, by data key or under `SORT_LENGTHS`; without a time axis, 1."""
        claims: Any = self._lengths
        get_seq_len = getattr(self._obj, "get_seq_len", None)
        if claims is None and get_seq_len is not None:
            with contextlib.suppress(NotImplementedError):  # a base class has the method and does not offer it
                claims = _transposed([get_seq_len(i) for i in range(self._num_seqs)])
        columns = {key: np.ones(self._num_seqs, np.int64) for key, spec in self.specs.items() if not spec.has_time}
        if claims is None:
            return columns
        if not isinstance(claims, Mapping):
            return {**columns, SORT_LENGTHS: np.asarray(claims)}
        return {**columns, **{key: np.asarray(column) for key, column in claims.items() if key in self.specs}}

    def seq_lengths(self, corpus_idx: int) -> dict[str, int]:
        """Return data key -> number of frames; reads the sequence if not all of them were claimed."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        if all(self.index.has_lengths(key) for key in self.specs):
            return super().seq_lengths(corpus_idx)
        return {key: num_frames_of(array, self.specs[key]) for key, array in self._seq(corpus_idx).items()}

    def read(self, corpus_idx: int, data_key: str) -> NDArray[Any]:
        """Return a copy of one value of an item."""
        check_data_key(data_key, self.specs)
        return self._seq(corpus_idx, data_key)[data_key].copy()

    def read_slice(self, corpus_idx: int, data_key: str, start: int, end: int) -> NDArray[Any]:
        """Return a copy of some frames of one value of an item."""
        check_data_key(data_key, self.specs)
        array = self._seq(corpus_idx)[data_key]
        return slice_frames(array, self.specs[data_key], start, end).copy()

    def read_seq(self, corpus_idx: int) -> dict[str, NDArray[Any]]:
        """Return copies of all values of an item."""
        if self._last is not None and self._last[0] == corpus_idx:
            return {data_key: array.copy() for data_key, array in self._last[1].items()}
        return self._take(corpus_idx, copies=True)  # nothing of it is left to be read, so it is not kept

    def _seq(self, corpus_idx: int, data_key: str | None = None) -> dict[str, NDArray[Any]]:
        """Return the checked arrays of a sequence; they may belong to the object.

        It is taken anew for a key that was read of it before, or what an object draws would depend on earlier reads.
        """
        if self._last is None or self._last[0] != corpus_idx or data_key in self._last[2]:
            self._last = corpus_idx, self._take(corpus_idx, copies=False), set()
        if data_key is not None:
            self._last[2].add(data_key)
        return self._last[1]

    def _take(self, corpus_idx: int, *, copies: bool) -> dict[str, NDArray[Any]]:
        """Take a sequence from the object; return its checked arrays, which may belong to it, or copies of them."""
        check_corpus_idx(corpus_idx, self._num_seqs)
        item = self._obj[corpus_idx]
        arrays = self._arrays_as_expected(item)
        if arrays is None:
            where, keys = self._where(corpus_idx), None if self._learnt else list(self.specs)
            arrays = checked_seq(_item_to_seq(item, keys, where), self.specs, exact=self._learnt, where=where)
        if copies:
            arrays = {data_key: array.copy() for data_key, array in arrays.items()}
        for key, lengths in self._claims.items():
            actual, claimed = num_frames_of(arrays[key], self.specs[key]), lengths[corpus_idx]
            if claimed != actual:
                raise SourceError(
                    f"{key!r} has {actual} frames, but its length is given as {claimed}",
                    where=self._where(corpus_idx),
                    fix="correct get_seq_len or lengths=",
                )
        return arrays

    def _arrays_as_expected(self, item: Any) -> dict[str, NDArray[Any]] | None:
        """Return the arrays of an item that is a dict of arrays, tensors and numbers of the layouts; or `None`."""
        if type(item) is not dict or (self._learnt and len(item) != len(self._expected)):
            return None
        arrays = {}
        for key, dtype, num_axes, takes_int, sizes in self._expected:
            array = item.get(key)
            if type(array) is not np.ndarray:
                is_int = takes_int and type(array) is int and -1 << 62 < array < 1 << 62
                if is_int or (not num_axes and isinstance(array, np.generic) and array.dtype == dtype):
                    arrays[key] = np.array(array, dtype)
                    continue
                array = _array_of_tensor(array)
                if array is None:
                    return None
            if (array.dtype is not dtype and array.dtype != dtype) or array.ndim != num_axes:
                return None
            if sizes:
                shape = array.shape
                for axis, size in sizes:
                    if shape[axis] != size:
                        return None
            arrays[key] = array
        return arrays

    def _where(self, corpus_idx: int) -> str:
        return f"item {corpus_idx} of {type(self._obj).__name__}, tag {self.tag(corpus_idx)!r}"

    @property
    def runs_user_code(self) -> bool:
        """Yes: the object is the user's."""
        return True

    @property
    def obj(self) -> Any:
        """The object."""
        return self._obj

    def own_order(self, epoch: int) -> Sequence[int] | None:
        """Return the corpus indices of an epoch, if the object says them, by `get_seq_order`."""
        get_seq_order = getattr(self._obj, "get_seq_order", None)
        try:
            return None if get_seq_order is None else get_seq_order(epoch)
        except NotImplementedError:  # a base class has the method and does not offer it
            return None

    def for_another_reader(self) -> Source:
        """Return a source of the same object, or of one that is made again; it caches a last sequence of its own."""
        source = copy.copy(self)
        source._last = None
        if self._make is not None:
            source._obj = self._make()
        return source

    def close(self) -> None:
        """Drop the last sequence; the object stays as it is."""
        self._last = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None, **({} if self._make is None else {"_obj": None})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._make is not None:
            self._obj = self._make()


class _Expected(NamedTuple):
    """The layout of one data key, in a form for fast comparison."""

    key: str
    dtype: np.dtype[Any]
    num_axes: int
    takes_int: bool  # an int is a value as it is
    sizes: tuple[tuple[int, int], ...]  # of axes that are not free

    @classmethod
    def of(cls, key: str, spec: DataSpec) -> _Expected:
        """Return it from a spec."""
        sizes = enumerate(spec.shape, start=int(spec.has_time))
        dtype, fixed = np.dtype(spec.dtype), tuple((axis, size) for axis, size in sizes if size is not None)
        return cls(key, dtype, spec.ndim, spec.ndim == 0 and dtype == np.int64, fixed)


def _array_of_tensor(value: Any) -> NDArray[Any] | None:
    """Return a torch tensor as an array over its memory; `None` if it is none, or more has to be done to it."""
    if type(value) is not getattr(sys.modules.get("torch"), "Tensor", None):
        return None
    try:
        array: NDArray[Any] = value.numpy()
    except (RuntimeError, TypeError):  # it needs a gradient, or is on a device
        return None
    return array


def _checked_tag(tag: object, where: str) -> str:
    """Return a tag as a plain str: NumPy arrays have their own kind, and UTF-8 bytes are taken, as in an index."""
    if isinstance(tag, bytes):
        try:
            return tag.decode()
        except UnicodeDecodeError as error:
            raise SourceError(f"the tag {tag!r} is not UTF-8: {error.reason}", where=where) from error
    if not isinstance(tag, str):
        raise SourceError(f"{where} gave {tag!r}, not a str")
    return str(tag)


def _item_to_seq(item: Any, keys: Sequence[str] | None, where: str) -> Mapping[str, Any]:
    """Assign data keys to the parts of an item."""
    if isinstance(item, Mapping):
        return item
    if item is None:
        raise SourceError(
            "the item is None",
            where=where,
            fix="return the item from __getitem__; leave out what cannot be read when the list of items is made, or "
            "raise an error for it: EngineOptions(on_error=Skipping(budget=...)) counts and leaves it out",
        )
    if not isinstance(item, tuple):
        item = (item,)
    names = getattr(item, "_fields", keys)
    if names is None:
        names = ("data", "classes")[: len(item)]
    if len(names) != len(item):
        raise SourceError(
            f"an item is a tuple of {len(item)} values for {len(names)} data keys {list(names)}",
            where=where,
            fix="name the values: give dicts as items, or specs= with one data key for each value, in order",
        )
    return dict(zip(names, item, strict=True))


def _transposed(rows: list[Any]) -> Any:
    """Turn lengths by sequence into lengths by data key; plain numbers stay a list."""
    if not rows or not isinstance(rows[0], Mapping):
        return rows
    try:
        return {key: [row[key] for row in rows] for key in rows[0]}
    except (KeyError, TypeError) as error:
        raise SourceError(
            "get_seq_len does not give the same data keys for every sequence", fix="return the same keys for every i"
        ) from error

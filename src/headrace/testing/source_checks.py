"""`check_source`: whether a source keeps the contract of `headrace.sources.Source`.

Each check is one function of a source and the sequences to look at; each raises `AssertionError` with what was found
and what the contract says. The checks use only the public methods of a source.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import HeadraceError
from headrace.sources import Source
from headrace.specs import DataSpec

_MAX_SEQS = 50  # sequences looked at in a large corpus
_UNTOUCHED = 0xA5
_EVERY_READ = "the same sequence must give the same array on every read"


def check_source(source: Source, *, max_seqs: int = _MAX_SEQS) -> None:
    """Check that a source keeps its contract.

    Call it from a test, with a source of some sequences of different lengths. It looks at the index (length, tags,
    lengths), the arrays (data keys, dtype, shape, class indices within the dim where there is one), the ways of reading
    (`read`, `read_slice`, `read_seq`, `read_rows`, `read_into`), reading in any order and again, whether arrays belong
    to the caller, a pickled copy, one for another reader, `close`, and questions for sequences and data keys that are
    not there. The source is open afterwards.

    Args:
        source: The source to check.
        max_seqs: Of a larger corpus, this many sequences are read, spread evenly; index and tags are checked in full.

    Raises:
        AssertionError: The source breaks the contract; the text says how.
    """
    num_seqs = len(source)
    seqs = sorted({round(i) for i in np.linspace(0, num_seqs - 1, min(num_seqs, max_seqs))}) if num_seqs else []
    _check_index(source)
    for corpus_idx in seqs:
        _check_layout(source, corpus_idx)
        _check_lengths(source, corpus_idx)
        _check_slices(source, corpus_idx)
    _check_order_of_reads(source, seqs)
    _check_ownership(source, seqs)
    _check_rows(source, seqs)
    _check_pickle(source, seqs)
    _check_other_reader(source, seqs)
    _check_close(source, seqs)
    _check_bad_questions(source, num_seqs)


def _require(condition: bool, message: str) -> None:
    """Raise an `AssertionError`; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(message)


def _pairs(source: Source, seqs: Iterable[int]) -> Iterator[tuple[int, str]]:
    return ((corpus_idx, data_key) for corpus_idx in seqs for data_key in source.specs)


def _place(source: Source, corpus_idx: int, data_key: str) -> str:
    return f"{type(source).__name__}, sequence {corpus_idx}, data key {data_key!r}"


def _same(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Tell whether arrays are equal bit for bit, NaNs too."""
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


def _flipped(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array all of whose bits differ."""
    bits = np.frombuffer(array.tobytes(), dtype=np.uint8) ^ 0xFF
    return np.frombuffer(bits.tobytes(), dtype=array.dtype).reshape(array.shape)


def _check_index(source: Source) -> None:
    name, num_seqs = type(source).__name__, len(source)
    _require(source.index.num_seqs == num_seqs, f"{name}: len is {num_seqs}, the index has {source.index.num_seqs}")
    tags = source.index.tags
    _require(len(tags) == num_seqs, f"{name}: {len(tags)} tags for {num_seqs} sequences")
    for corpus_idx, tag in enumerate(tags):
        _require(isinstance(tag, str), f"{name}: the tag of sequence {corpus_idx} is {tag!r}, not a str")
    for corpus_idx in {0, num_seqs // 2, num_seqs - 1} if num_seqs else ():
        ours, theirs = source.tag(corpus_idx), tags[corpus_idx]
        _require(ours == theirs, f"{name}: tag({corpus_idx}) is {ours!r}, in the index it is {theirs!r}")
    for data_key, spec in source.specs.items():
        _require(isinstance(spec, DataSpec), f"{name}: the spec of {data_key!r} is {spec!r}, not a DataSpec")
        if source.index.has_lengths(data_key):
            lengths = source.index.lengths(data_key)
            _require(lengths.shape == (num_seqs,), f"{name}: lengths of {data_key!r} have the shape {lengths.shape}")
            _require(bool(np.all(lengths >= 0)), f"{name}: a length of {data_key!r} is {lengths.min(initial=0)}")
    for data_key, labels in source.labels.items():
        _require(data_key in source.specs, f"{name}: labels for {data_key!r}, which is no data key")
        dim = source.specs[data_key].dim
        _require(dim in (None, len(labels)), f"{name}: {len(labels)} labels for the {dim} classes of {data_key!r}")


def _check_layout(source: Source, corpus_idx: int) -> None:
    arrays = source.read_seq(corpus_idx)
    where = f"{type(source).__name__}, sequence {corpus_idx}"
    _require(
        list(arrays) == list(source.specs), f"{where}: read_seq gives {list(arrays)}, specs are {list(source.specs)}"
    )
    for data_key, spec in source.specs.items():
        array = source.read(corpus_idx, data_key)
        where = _place(source, corpus_idx, data_key)
        _require(isinstance(array, np.ndarray), f"{where}: read gives {type(array).__name__}, not an array")
        _require(
            array.dtype == np.dtype(spec.dtype), f"{where}: the dtype is {array.dtype}, its spec says {spec.dtype}"
        )
        _require(array.ndim == spec.ndim, f"{where}: the array has {array.ndim} axes, its spec says {spec.ndim}")
        frame_shape = array.shape[1:] if spec.has_time else array.shape
        fits = all(expected in (None, size) for size, expected in zip(frame_shape, spec.shape, strict=True))
        _require(fits, f"{where}: a frame has the shape {frame_shape}, its spec says {spec.shape}")
        if spec.sparse and spec.dim is not None and array.size:  # without a dim they may be no class indices at all
            low, high = int(array.min()), int(array.max())
            _require(
                0 <= low <= high < spec.dim,
                f"{where}: class indices are in {low}..{high}, its spec says {spec.dim} classes",
            )
        _require(_same(array, arrays[data_key]), f"{where}: read and read_seq give different arrays")


def _check_lengths(source: Source, corpus_idx: int) -> None:
    said = source.seq_lengths(corpus_idx)
    _require(set(said) == set(source.specs), f"{type(source).__name__}: seq_lengths has the keys {sorted(said)}")
    for data_key, spec in source.specs.items():
        array = source.read(corpus_idx, data_key)
        where, actual = _place(source, corpus_idx, data_key), len(array) if spec.has_time else 1
        _require(said[data_key] == actual, f"{where}: seq_lengths says {said[data_key]} frames, the array has {actual}")
        if source.index.has_lengths(data_key):
            indexed = int(source.index.lengths(data_key)[corpus_idx])
            _require(indexed == actual, f"{where}: the index says {indexed} frames, the array has {actual}")


def _check_slices(source: Source, corpus_idx: int) -> None:
    for data_key, spec in source.specs.items():
        if not spec.has_time:
            continue
        array = source.read(corpus_idx, data_key)
        num_frames, where = len(array), _place(source, corpus_idx, data_key)
        cuts = sorted({0, num_frames // 3, num_frames // 2, num_frames})
        for start, end in [*itertools.pairwise(cuts), (0, num_frames), (num_frames, num_frames)]:
            piece = source.read_slice(corpus_idx, data_key, start, end)
            _require(_same(piece, array[start:end]), f"{where}: read_slice({start}, {end}) is not that part of read")


def _check_rows(source: Source, seqs: list[int]) -> None:
    indices = np.array([*seqs, *seqs[:2], *reversed(seqs)], dtype=np.int64)
    for data_key, spec in source.specs.items():
        where = f"{type(source).__name__}, data key {data_key!r}"
        if None in spec.shape or not source.index.has_lengths(data_key):
            _require(not source.has_fast_rows, f"{where}: has_fast_rows, but with free axes or without lengths")
            continue
        arrays = [source.read(corpus_idx, data_key) for corpus_idx in indices.tolist()]
        num_rows = sum(len(array) for array in arrays) if spec.has_time else len(arrays)
        rows: NDArray[Any] = np.empty((num_rows, *spec.shape), spec.dtype)  # type: ignore[arg-type]
        source.read_rows(indices, data_key, rows)
        same = rows.tobytes() == b"".join(array.tobytes() for array in arrays)
        _require(same, f"{where}: read_rows and read give different arrays")
        if spec.has_time:
            _check_into(source, indices, data_key, arrays, where)


def _check_into(
    source: Source, indices: NDArray[np.int64], data_key: str, arrays: list[NDArray[Any]], where: str
) -> None:
    """Read sequences into the rows of a padded array, whose padding stays as it is."""
    longest = max(map(len, arrays), default=0) + 1
    padded = np.empty((len(arrays), longest, *arrays[0].shape[1:]), arrays[0].dtype) if arrays else np.empty((0, 0))
    padded.reshape(-1).view(np.uint8)[...] = _UNTOUCHED
    source.read_into(indices, data_key, [row[: len(array)] for row, array in zip(padded, arrays, strict=True)])
    for row, array in zip(padded, arrays, strict=True):
        _require(_same(row[: len(array)], array), f"{where}: read_into and read give different arrays")
        padding = row[len(array) :].tobytes()
        _require(padding == bytes([_UNTOUCHED]) * len(padding), f"{where}: read_into writes beyond an array")


def _check_order_of_reads(source: Source, seqs: list[int]) -> None:
    held = {pair: source.read(*pair) for pair in _pairs(source, seqs)}
    first = {pair: source.read(*pair).copy() for pair in held}
    shuffled = [list(first)[i] for i in np.random.RandomState(0).permutation(len(first))]
    for pair in [*reversed(first), *shuffled, *shuffled]:
        _require(_same(source.read(*pair), first[pair]), f"{_place(source, *pair)}: {_EVERY_READ}, in any order")
    for pair, array in held.items():
        _require(_same(array, first[pair]), f"{_place(source, *pair)}: a later read wrote to an array given out before")


def _check_ownership(source: Source, seqs: list[int]) -> None:
    for corpus_idx, data_key in _pairs(source, seqs):
        where, before = _place(source, corpus_idx, data_key), source.read(corpus_idx, data_key).tobytes()
        arrays = [source.read(corpus_idx, data_key), source.read_seq(corpus_idx)[data_key]]
        if source.specs[data_key].has_time:
            arrays.append(source.read_slice(corpus_idx, data_key, 0, len(arrays[0])))
        for array in arrays:
            _require(array.flags.writeable, f"{where}: the array is read-only, but it must be the caller's own")
            array[...] = _flipped(array)
            again = source.read(corpus_idx, data_key).tobytes()
            _require(
                again == before, f"{where}: writing to an array changed the next read: it must be the caller's own"
            )


def _check_pickle(source: Source, seqs: list[int]) -> None:
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - our own bytes
    name = type(source).__name__
    _require(len(copy) == len(source), f"{name}: pickled, it has {len(copy)} sequences instead of {len(source)}")
    _require(dict(copy.specs) == dict(source.specs), f"{name}: pickled, its specs are {copy.specs}")
    same_labels = {key: list(names) for key, names in copy.labels.items()} == {
        key: list(names) for key, names in source.labels.items()
    }
    _require(same_labels, f"{name}: pickled, its labels differ")
    _require(copy.index.digest == source.index.digest, f"{name}: pickled, its tags or lengths differ")
    for pair in _pairs(source, seqs):
        _require(
            _same(copy.read(*pair), source.read(*pair)),
            f"{_place(source, *pair)}: the pickled copy reads another array",
        )
    copy.close()


def _check_other_reader(source: Source, seqs: list[int]) -> None:
    other = source.for_another_reader()
    if other is None:
        return
    _require(dict(other.specs) == dict(source.specs), f"{type(source).__name__}: another reader has other specs")
    held = {pair: source.read(*pair) for pair in _pairs(source, seqs)}
    for reader, closed in ((other, source), (source, other)):
        for pair, array in held.items():
            _require(_same(reader.read(*pair), array), f"{_place(source, *pair)}: another reader reads another array")
            _require(_same(closed.read(*pair), array), f"{_place(source, *pair)}: {_EVERY_READ}, beside another reader")
        closed.close()
        for pair, array in held.items():
            _require(
                _same(reader.read(*pair), array), f"{_place(source, *pair)}: {_EVERY_READ}, also after another's close"
            )
    other.close()


def _check_close(source: Source, seqs: list[int]) -> None:
    before = {pair: source.read(*pair) for pair in _pairs(source, seqs[:1])}
    source.close()
    source.close()
    for pair, array in before.items():
        _require(_same(source.read(*pair), array), f"{_place(source, *pair)}: after close, a read gives another array")


def _check_bad_questions(source: Source, num_seqs: int) -> None:
    for data_key in source.specs:
        for corpus_idx in (-1, num_seqs, num_seqs + 1000):
            _require_error(source, corpus_idx, data_key, (IndexError, HeadraceError), "an IndexError")
    if num_seqs:
        _require_error(source, 0, "no such data key", (KeyError, HeadraceError), "a SourceError")


def _require_error(
    source: Source, corpus_idx: int, data_key: str, errors: tuple[type[Exception], ...], wanted: str
) -> None:
    where = _place(source, corpus_idx, data_key)
    try:
        array = source.read(corpus_idx, data_key)
    except errors:
        return
    raise AssertionError(f"{where}: this is not there, but read gives {array.dtype}{list(array.shape)}, not {wanted}")

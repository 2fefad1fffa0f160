"""The data keys of a dataset made of several: where each comes from, and what replaces those that a part lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.specs import DataSpec

from ..checks import declared_spec, remark_once
from ..corpus import Corpus
from .base import check_names


class KeySource(NamedTuple):
    """One entry of a data map: the data key `own` of the sub-dataset `part` is the data key `key` of the whole."""

    part: str
    own: str
    key: str


def parse_data_map(data_map: Any, names: Iterable[str]) -> list[KeySource]:
    """Return the entries of a `data_map`.

    Args:
        data_map: (sub-dataset, its data key) -> data key, as in RETURNN; or, where keys cannot be pairs, as in JSON, a
            list of [sub-dataset, its data key, data key].
        names: The sub-datasets that there are.

    Raises:
        ConfigError: It has another form, names a sub-dataset that is not there, or maps two data keys of one
            sub-dataset to one.
    """
    form = 'write {("speech", "data"): "data", ("text", "data"): "words"}, or [["speech", "data", "data"], ...]'
    entries = list(data_map.items()) if isinstance(data_map, Mapping) else data_map
    if not isinstance(entries, list | tuple) or not entries:
        raise ConfigError(
            f"data_map must be a dict (sub-dataset, its data key) -> data key, got {data_map!r}", fix=form
        )
    found: list[KeySource] = []
    seen: dict[tuple[str, str], str] = {}
    names = list(names)
    for entry in entries:
        texts = [*entry[0], entry[1]] if isinstance(data_map, Mapping) and isinstance(entry[0], tuple) else entry
        if not isinstance(texts, list | tuple) or len(texts) != 3 or not all(isinstance(text, str) for text in texts):
            raise ConfigError(f"data_map has the entry {entry!r}", fix=form)
        source = KeySource(*texts)
        if source.part not in names:
            where, fix = f"data_map[{(source.part, source.own)!r}]", did_you_mean(source.part, names)
            raise ConfigError(f"there is no sub-dataset {source.part!r}", where=where, fix=fix)
        if (source.part, source.key) in seen:
            raise ConfigError(
                f"two data keys of the sub-dataset {source.part!r}, {seen[source.part, source.key]!r} and "
                f"{source.own!r}, are mapped to the one data key {source.key!r}",
                where="data_map",
                fix="give each a name of its own",
            )
        seen[source.part, source.key] = source.own
        found.append(source)
    return found


@dataclass(frozen=True)
class JointLayout:
    """The data keys of a dataset made of several.

    Attributes:
        keys: Sub-dataset -> data key of the whole -> its data key.
        specs: Data key -> layout, "data" first; `None` if it is learnt from the first sequence.
        labels: Data key -> class labels, where there are some.
    """

    keys: Mapping[str, Mapping[str, str]]
    specs: Mapping[str, DataSpec | None]
    labels: Mapping[str, Sequence[str]]

    @property
    def data_keys(self) -> list[str]:
        """The data keys, "data" first."""
        return list(self.specs)

    def filled(self, features: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the arrays of one sequence by all data keys: those that its dataset lacks have no frames."""
        return {key: features[key] if key in features else self.empty(key) for key in self.specs}

    def empty(self, key: str) -> NDArray[Any]:
        """Return the empty array that replaces a data key that the dataset of a sequence does not have."""
        spec = self.specs[key]
        assert spec is not None  # checked when built
        frame = [size or 0 for size in spec.shape]
        return np.zeros([0, *frame] if spec.has_time else frame, spec.dtype)

    def empty_length(self, key: str) -> int:
        """Return the number of frames of a data key that the dataset of a sequence does not have."""
        spec = self.specs[key]
        return 0 if spec is None or spec.has_time else 1


def make_layout(
    parts: Mapping[str, Corpus],
    entries: Sequence[KeySource],
    data_dims: Mapping[str, Any],
    data_dtypes: Mapping[str, str],
) -> JointLayout:
    """Compare what the sub-datasets have under each data key, and return the layout of the whole.

    Args:
        parts: The sub-datasets.
        entries: Where each data key comes from.
        data_dims: Data key -> (dim, ndim): what must be found; also says which number of classes holds where the
            sub-datasets differ.
        data_dtypes: Data key -> dtype, likewise; only logged if something else is found.

    Raises:
        ConfigError: A data key does not exist, or has two layouts.
    """
    keys: dict[str, dict[str, str]] = {name: {} for name in parts}
    specs: dict[str, DataSpec | None] = {}
    labels: dict[str, Sequence[str]] = {}
    firsts: dict[str, KeySource] = {}
    for entry in entries:
        part, key = parts[entry.part], entry.key
        check_own_key(part, entry.part, entry.own, f"data_map, {tuple(entry)}")
        keys[entry.part][key] = entry.own
        first, known, spec = firsts.setdefault(key, entry), specs.get(key), (part.layout() or {}).get(entry.own)
        # An empty corpus tells no layout, and a stream is checked when it is read
        specs[key] = _joined(known, spec, first, entry, key in data_dims) if known and spec else known or spec
        own_labels = part.labels.get(entry.own)
        if own_labels is not None and list(labels.setdefault(key, own_labels)) != list(own_labels):
            raise ConfigError(
                f"the data key {key!r} has other class labels in {entry.part!r} than in the sub-datasets before it",
                where=f"data_map, {tuple(first)} and {tuple(entry)}",
                fix="give the two different names, or let both use the same vocabulary",
            )
    _take_declared(specs, data_dims, data_dtypes)
    for key, spec in specs.items():  # a replacement of an unknown layout would be unknown
        without = [name for name, own in keys.items() if key not in own]
        if spec is None and without:
            raise ConfigError(
                f"the layout of the data key {key!r} is not known before it is read, and the sub-dataset "
                f"{without[0]!r} has no such key",
                fix=f"say it by data_dims={{{key!r}: (dim, ndim)}} and data_dtypes, or let its dataset set num_outputs",
            )
    return JointLayout(keys, {key: specs[key] for key in data_first(specs)}, labels)


def data_first(keys: Iterable[str]) -> list[str]:
    """Return data keys in the order in which a dataset names them: "data" first."""
    return sorted(keys, key=lambda key: (key != "data", key))


def check_own_key(part: Corpus, name: str, own: str, where: str) -> None:
    """Refuse a data key that a sub-dataset does not have; before it is read, some do not tell which they have.

    Raises:
        ConfigError: There is no such data key.
    """
    known = list(part.layout() or ())
    if known and own not in known:
        fix = did_you_mean(own, known)
        raise ConfigError(f"the sub-dataset {name!r} has no data key {own!r}", where=where, fix=fix)


def _joined(spec: DataSpec, other: DataSpec, first: KeySource, entry: KeySource, has_dim: bool) -> DataSpec:
    """Return the one layout of a data key that two sub-datasets have."""
    if spec.sparse and other.sparse and spec.dim != other.dim and (has_dim or None in (spec.dim, other.dim)):
        dim = None if spec.dim is None or other.dim is None else max(spec.dim, other.dim)
        spec, other = dataclasses.replace(spec, dim=dim), dataclasses.replace(other, dim=dim)
    if spec == other:
        return spec
    names = ("sparse", "dtype", "shape", "has_time", "dim")
    name = next(name for name in names if getattr(spec, name) != getattr(other, name))
    fix = "give the two different names in data_map, or bring one of the corpora to the layout of the other"
    if name == "dim":
        dim = max(spec.dim or 0, other.dim or 0)
        fix = f"if {dim} classes hold both, say so by data_dims={{{first.key!r}: ({dim}, {spec.ndim})}}"
    raise ConfigError(
        f"the data key {first.key!r} has two layouts: {name} is {getattr(spec, name)} in {first.part!r}, and "
        f"{getattr(other, name)} in {entry.part!r}",
        where=f"data_map, {tuple(first)} and {tuple(entry)}",
        fix=fix,
    )


def _take_declared(specs: dict[str, DataSpec | None], dims: Mapping[str, Any], dtypes: Mapping[str, str]) -> None:
    """Compare what was declared with what was found, and fill in what was not."""
    check_names("data_dims", dims, "data key", specs)
    check_names("data_dtypes", dtypes, "data key", specs)
    for key, given in dims.items():
        wanted = tuple(given) if isinstance(given, tuple | list) else (given,)
        spec = specs[key]
        if spec is None:
            specs[key] = declared_spec(*wanted, dtypes.get(key)) if len(wanted) == 2 else None
            continue
        may_grow = spec.sparse and isinstance(wanted[0], int) and wanted[0] >= (spec.dim or 0)
        if wanted[1:] not in ((), (spec.ndim,)) or not (wanted[0] == spec.dim or may_grow):
            raise ConfigError(f"data_dims says that {key!r} has (dim, ndim) {given}, it has {spec.num_outputs}")
        specs[key] = dataclasses.replace(spec, dim=wanted[0])
    for key, dtype in dtypes.items():
        spec = specs[key]
        if spec is not None and spec.dtype != dtype:
            remark_once(f"data_dtypes says that {key!r} has dtype {dtype}, it has {spec.dtype}")


def same_keys(parts: Mapping[str, Corpus]) -> list[KeySource]:
    """Return the data map of parts that have the same data keys; those that show none have no sequences, or any."""
    known = {name: list(layout) for name, part in parts.items() if (layout := part.layout())}
    if not known:
        raise ConfigError("no sub-dataset tells its data keys before it is read", fix="let them set num_outputs")
    first, data_keys = next(iter(known.items()))
    for name, others in known.items():
        if set(others) != set(data_keys):
            raise ConfigError(
                f"the sub-datasets have different data keys: number {first} has {sorted(data_keys)}, number {name} has "
                f"{sorted(others)}",
                fix="use CombinedDataset, whose data_map says what belongs together",
            )
    return [KeySource(name, key, key) for name in parts for key in data_keys]

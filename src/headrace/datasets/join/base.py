"""What corpora over those of others have in common: named parts with data keys, and a reader for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean

from ..corpus import Corpus, IndexedCorpus
from ..orders import Orders
from ..parts import check_no_cycle
from ..reading.loaded import OrderCursor
from ..reading.reader import Reader, ReadRequest
from ..seq import DatasetSeq


class JoinedCorpus(IndexedCorpus):
    """A corpus whose sequences are those of its parts.

    Args:
        name: See `Corpus`.
        orders: Likewise.
        parts: Name -> part.
        keys: Name of a part -> data key of the whole -> data key of the part; may be empty.

    Attributes:
        names: The names of the parts.
        keys: See above.
    """

    def __init__(
        self, name: str, orders: Orders, parts: Mapping[str, Corpus], keys: Mapping[str, Mapping[str, str]]
    ) -> None:
        super().__init__(name, orders, tuple(parts.values()))
        self.names, self.keys = tuple(parts), keys

    @property
    def by_name(self) -> dict[str, Corpus]:
        """Name -> part."""
        return dict(zip(self.names, self.parts, strict=True))

    @property
    def knows_dtypes(self) -> bool:  # type: ignore[override]
        """Whether all parts know them."""
        return all(part.knows_dtypes for part in self.parts)

    @property
    def has_fixed_lengths(self) -> bool:  # type: ignore[override]
        """Whether those of all parts are."""
        return all(part.has_fixed_lengths for part in self.parts)

    @property
    def can_jump(self) -> bool:  # type: ignore[override]
        """Whether all parts can."""
        return all(part.can_jump for part in self.parts)

    def can_give_stored(self) -> bool:
        """Whether all parts that have data keys do."""
        read = [part for name, part in self.by_name.items() if self.keys[name]]
        return all(part.is_indexed and part.can_give_stored() for part in read)

    def part_texts(self) -> list[str]:
        """Return texts that tell the parts from others."""
        parts = self.by_name.items()
        return [f"{name} {sorted(self.keys[name].items())} {part.digest_text()}" for name, part in parts]


class PartReader:
    """Reads a part under the data keys of the whole.

    Args:
        name: Its name.
        part: The part.
        keys: Data key of the whole -> its data key.

    Attributes:
        knows_corpus: Whether its corpus indices are known; else it is asked by tags.
        draws: Whether it draws by how often a sequence came before.
    """

    def __init__(self, name: str, part: Corpus, keys: Mapping[str, str]) -> None:
        self.knows_corpus, self.draws = part.is_indexed, part.draws_by_occurrence
        self.name, self.keys = name, keys
        self.reader = part.reader()
        wanted = set(keys.values())
        self._are_distinct = len(wanted) == len(keys)
        # Data keys that are not asked for stay unread. (What reads all at once may have to be read for them.)
        self._reads_by_key = self.reader.reads_by_key() and wanted != set(part.layout() or ())

    def array(self, number: int, key: str) -> NDArray[Any]:
        """Return the array of one data key of the whole."""
        return self.reader.array(number, self.keys[key])

    def frames(self, number: int, key: str, start: int, stop: int) -> NDArray[Any]:
        """Return frames start..stop of one data key of the whole."""
        return self.reader.frames(number, self.keys[key], start, stop)

    def sliced_frames(self, number: int) -> dict[str, int | None] | None:
        """Return the lengths of the data keys of the whole if `frames` is to be asked, see `Reader.sliced_frames`."""
        found = self.reader.sliced_frames(number)
        return None if found is None else {key: found[own] for key, own in self.keys.items()}

    def features(self, number: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of all of its data keys of the whole; no two are one."""
        if self._reads_by_key:
            return {key: self.reader.array(number, own) for key, own in self.keys.items()}
        features = self.reader.features(number)
        if self._are_distinct:
            return {key: features[own] for key, own in self.keys.items()}
        return {key: features[own].copy() for key, own in self.keys.items()}

    def known_frames(self, number: int) -> dict[str, Any] | None:
        """Return data key of the whole -> number of frames, see `Reader.known_frames`."""
        frames = self.reader.known_frames(number)
        return None if frames is None else {key: frames[own] for key, own in self.keys.items()}


class CompositeReader(Reader):
    """Reads sequences that are made of those of other readers.

    Args:
        tags_of: Returns the tags of corpus indices, `int64[n]`.
        sides: What reads the parts.
    """

    def __init__(self, tags_of: Callable[[NDArray[np.int64]], list[str]], sides: Sequence[PartReader]) -> None:
        inner = [side.reader for side in sides]
        self._tags_of, self._sides = tags_of, sides
        self.is_sequential = any(reader.is_sequential for reader in inner)
        self.gives_own = all(reader.gives_own for reader in inner)
        self._reads_by_key = all(reader.reads_by_key() for reader in inner)
        self.start(ReadRequest.of(None, np.zeros(0, np.int64)))

    def start(self, wanted: ReadRequest) -> None:
        """Set the sequences to read next."""
        self._wanted, self._cursor = wanted, OrderCursor(wanted.order)
        self._tags: list[str] | None = None  # if somebody asked for all of them

    def reads_by_key(self) -> bool:
        """Whether all parts do."""
        return self._reads_by_key

    def tags(self) -> list[str]:
        """Look up the tags."""
        if self._tags is None:
            self._tags = self._tags_of(self._wanted.indices)
        return self._tags

    def _tag(self, number: int) -> str:
        if self._tags is not None:
            return self._tags[number]
        return self._tags_of(self._wanted.order.block(number, number + 1))[0]

    def read(self, number: int) -> DatasetSeq:
        """Read a sequence."""
        return DatasetSeq.made_of(number, self.features(number), self._tag(number), None, self._cursor[number])


def check_names(option: str, named: Mapping[str, Any], what: str, known: Sequence[str] | Mapping[str, Any]) -> None:
    """Refuse an option by name that names something else than what there is.

    Raises:
        ConfigError: A name is unknown.
    """
    for name in named:
        if name not in known:
            raise ConfigError(f"{option} names the {what} {name!r}, which is not there", fix=did_you_mean(name, known))


def check_configs(datasets: Any) -> None:
    """Refuse sub-datasets that are not described by a dict, or one that contains itself.

    Raises:
        ConfigError: They are.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise ConfigError(
            f"datasets must be a dict sub-dataset -> config, got {brief(datasets)}",
            fix='write {"speech": {"class": "HDFDataset", ...}, ...}',
        )
    check_no_cycle(datasets)


def brief(value: object) -> str:
    """Return what a user has given as a short text."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

"""What datasets over the corpora of others have in common: one index of tags, one order, and a reader for each part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, did_you_mean
from headrace.index import CorpusIndex
from headrace.order import Order

from ..base import Dataset
from ..corpus import Corpus, num_left_out
from ..digests import digest_array
from ..ordered import OrderedDataset
from ..parts import check_no_cycle, tags_of
from ..reading.loaded import OrderCursor
from ..reading.reader import Reader, ReadRequest
from ..seq import DatasetSeq

_TAG_BLOCK = 256  # tags decoded at a time: alone, each takes ten times as long


class MetaPart:
    """A sub-dataset.

    Args:
        name: Its key among the sub-datasets.
        dataset: The sub-dataset; it is read through readers only.
        keys: Data key of the whole -> data key of this dataset; may be empty.
    """

    def __init__(self, name: str, dataset: Dataset, keys: Mapping[str, str]) -> None:
        self.name = name
        self.dataset = dataset
        self.keys = dict(keys)
        dataset.foreign.answer_alone()
        dataset.check_tags()

    @property
    def corpus(self) -> Corpus:
        """What is known of its corpus."""
        return self.dataset.get_corpus()

    @property
    def source(self) -> object:
        """The object that its tags come from: a new one if the tags may have changed."""
        return self.dataset.source_of_tags()

    def tag_index(self) -> CorpusIndex | None:
        """Return its tags, `None` if it does not tell them."""
        return tags_of(self.dataset)


class PartReader:
    """Reads a sub-dataset under the data keys of the whole.

    Args:
        part: The sub-dataset to read; its dataset is used by nothing else.

    Attributes:
        knows_corpus: Whether its corpus indices are known; else it is asked by tags.
        draws: Whether it draws by how often a sequence came before.
    """

    def __init__(self, part: MetaPart) -> None:
        corpus = part.corpus
        self.knows_corpus, self.draws = corpus.is_indexed, corpus.draws_by_occurrence
        self.name, self.keys = part.name, part.keys
        self.reader = part.dataset.make_reader()
        wanted = set(self.keys.values())
        self._are_distinct = len(wanted) == len(self.keys)
        # Data keys that are not asked for stay unread. (A dataset that reads all at once may have to be read for them.)
        self._reads_by_key = self.reader.reads_by_key() and wanted != set(part.dataset.get_data_keys())

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


class IndexedCorpus(Protocol):
    """Anything with an index."""

    def __len__(self) -> int: ...

    def tags_of(self, indices: NDArray[np.int64]) -> list[str]:
        """Return the tags of corpus indices."""

    @property
    def index(self) -> CorpusIndex:
        """The tags by corpus index."""


_Joined = TypeVar("_Joined", bound=IndexedCorpus)


class OverCorpora(OrderedDataset):
    """A dataset whose sequences are those of other datasets.

    Attributes:
        members: These datasets, each with its data keys.
        data_keys: The data keys, "data" first.
    """

    members: Sequence[MetaPart]
    data_keys: list[str]

    _corpus: Any = None
    _joined: Sequence[object] = ()  # what it was made of
    _lengths: NDArray[Any] | None = None  # what is sorted by
    _tag_start = 0
    _tag_block: Sequence[str] = ()

    @property
    @abstractmethod
    def corpus(self) -> IndexedCorpus:
        """The sequences."""

    def _join_once(self, join: Callable[[], _Joined]) -> _Joined:
        """Return what `join` makes of the corpora of the parts; anew only after the tags of one may have changed."""
        sources = [part.source for part in self.members]
        if self._corpus is None or any(a is not b for a, b in zip(sources, self._joined, strict=True)):
            self._corpus = join()
            self._joined, self._keep, self._file_lengths, self._lengths = sources, None, None, None
            self._planner.invalidate()
        joined: _Joined = self._corpus
        return joined

    @property
    def _corpus_index(self) -> CorpusIndex:
        return self.corpus.index

    def _num_stored(self) -> int:
        return len(self.corpus)

    @abstractmethod
    def _sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:
        """Return `int[N]`: what sequences are sorted by in an epoch; `None`: in the current one."""

    def _order_details(self, epoch: int) -> list[str]:
        """Return also the lengths that are sorted by, where the digests of the parts do not cover them."""
        details, has_file = super()._order_details(epoch), self.seq_order_seq_lens_file is not None
        if has_file or not self._recipe.policy_for_epoch(epoch).needs_lengths or self.get_corpus().has_fixed_lengths:
            return details
        return [*details, f"sorted by lengths {digest_array(self._sort_lengths(epoch))}"]

    def _take_order(self, order: Order, first: int = 0, **options: Any) -> None:
        super()._take_order(order, first, **options)
        self._tag_start, self._tag_block = 0, ()

    def get_tag(self, seq_idx: int) -> str:
        """Return the tag of a sequence of the current order."""
        offset = seq_idx - self._tag_start
        if not 0 <= offset < len(self._tag_block):
            self._corpus_idx(seq_idx)  # outside of the epoch: said by an error
            cursor, order = seq_idx - self._cursor.first, self._cursor.order
            indices = order.block(cursor, min(cursor + _TAG_BLOCK, len(order)))
            self._tag_start, offset, self._tag_block = seq_idx, 0, self.corpus.tags_of(indices)
        return self._tag_block[offset]

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the parts as well, see `Dataset.finish_epoch`."""
        super().finish_epoch(free_resources=free_resources)
        if free_resources:
            self._corpus = self._lengths = None

    def _corpus_over(self, parts: Sequence[tuple[MetaPart, Corpus]], epoch: int | None, **own: Any) -> Corpus:
        """Return what is known of the corpora of the parts as one.

        Args:
            parts: All of them, with what is known of each.
            epoch: In which, see `Dataset.get_corpus`.
            **own: What the class itself has to say of it.
        """
        corpora = [corpus for _, corpus in parts]
        known: dict[str, Any] = {
            "knows_order": self.foreign.knows_order,
            "size": lambda: len(self.corpus),
            "index": lambda: self.corpus.index,
            "tags_of": lambda indices: self.corpus.tags_of(indices),
            "has_fixed_lengths": all(corpus.has_fixed_lengths for corpus in corpora),
            "sort_lengths": partial(self._sort_lengths, epoch),
            "kept": self._kept,
            "num_filtered": lambda: num_left_out(self._kept(), corpora),
        }
        for name in ("may_change_lengths", "draws_by_occurrence", "encodes_texts"):
            known[name] = any(getattr(corpus, name) for corpus in corpora)
        return Corpus(is_indexed=True, **{**known, **own})

    def get_parts(self) -> Sequence[Dataset]:
        """Return the datasets of the parts."""
        return [part.dataset for part in self.members]

    @property
    def supports_jumps(self) -> bool:
        """Whether all parts support it."""
        return all(inner.supports_jumps for inner in self.get_parts())

    def get_data_keys(self) -> list[str]:
        """Return the data keys, "data" first."""
        return list(self.data_keys)

    def get_target_list(self) -> list[str]:
        """Return the data keys without "data"."""
        return [key for key in self.data_keys if key != "data"]

    def _check_key(self, key: str) -> None:
        if key not in self.data_keys:
            where, fix = f"dataset {self.name!r}", did_you_mean(key, self.data_keys)
            raise ConfigError(f"no data key {key!r}", where=where, fix=fix)


class CompositeReader(Reader):
    """Reads sequences that are made of those of other readers.

    Args:
        corpus: Corpus of the sequences.
        sides: What reads the parts.
    """

    def __init__(self, corpus: IndexedCorpus, sides: Sequence[PartReader]) -> None:
        inner = [side.reader for side in sides]
        self._tags_of, self._sides = corpus.tags_of, sides
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

"""Cuts by corpus index, ready to be loaded: from files by an index, or from a `CutSet` in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import SourceError
from headrace.index import CorpusIndex

from ..shared.lines import decode_object
from ..shared.plain_files import PlainFiles
from .files import CutFiles, LineFiles
from .library import import_lhotse, lhotse_errors
from .schema import Roots

if TYPE_CHECKING:
    from types import ModuleType


class FieldColumns(NamedTuple):
    """Names of the index columns that say where the data of a field of Shar are, in bytes."""

    start: str
    num_bytes: str
    meta_start: str
    meta_bytes: str
    suffix: str

    @classmethod
    def of(cls, field: str) -> FieldColumns:
        """Return those of a field."""
        return cls(*(f"{field}/{name}" for name in cls._fields))


_JSON = (dict, list, str, int, float, bool, type(None))
SHARD, LINE_START, LINE_BYTES = "shard", "line_start", "line_bytes"


class CutTable(ABC):
    """Access to the cuts of a corpus."""

    @abstractmethod
    def cut(self, corpus_idx: int, shar_fields: Iterable[str]) -> Any:
        """Return a cut, with the data of some fields attached.

        Raises:
            SourceError: It cannot be read, or is not the one that was indexed.
        """

    @abstractmethod
    def where(self, corpus_idx: int) -> str:
        """Say where a cut is, for messages."""

    @abstractmethod
    def close(self) -> None:
        """Release files; a later read opens them again."""


class HeldCuts(CutTable):
    """Cuts in memory.

    Args:
        cuts: The cuts, by corpus index.
    """

    def __init__(self, cuts: Sequence[Any]) -> None:
        self._cuts = cuts

    def cut(self, corpus_idx: int, shar_fields: Iterable[str]) -> Any:
        """Return a cut as it is."""
        del shar_fields
        return self._cuts[corpus_idx]

    def where(self, corpus_idx: int) -> str:
        """Name a cut."""
        return f"cut {self._cuts[corpus_idx].id!r} in memory"

    def close(self) -> None:
        """Do nothing."""


class StoredCuts(CutTable):
    """Cuts in manifests, and the data that Shar has of them.

    Args:
        files: Files of the corpus.
        index: Index of these files.
        roots: Where what they name may be.
    """

    def __init__(self, files: CutFiles, index: CorpusIndex, roots: Roots) -> None:
        self._files, self._index, self._roots = files, index, roots
        self._lines = LineFiles(index.files, index.meta["text_bytes"])
        self._data = PlainFiles(index.files)
        self._file_idx = {field: files.file_idx(field, 0) for field in files.fields}
        self._is_tar = {field: [path.endswith(".tar") for path in paths] for field, paths in files.fields.items()}

    def cut(self, corpus_idx: int, shar_fields: Iterable[str]) -> Any:
        """Read the line of a cut again, and what Shar has of it."""
        where, shard = self.where(corpus_idx), self._shard(corpus_idx)
        line = self._lines.read(shard, self._number(LINE_START, corpus_idx), self._number(LINE_BYTES, corpus_idx))
        cut = decode_cut(line, self._roots, where)
        tag = self._index.tags[corpus_idx]
        if cut.id != tag:
            raise SourceError(f"the cut here was {tag!r} and is {cut.id!r}", where=where, fix="build the source again")
        for field in shar_fields:
            if field in self._file_idx:
                self._attach(cut, corpus_idx, shard, field)
        return cut

    def _attach(self, cut: Any, corpus_idx: int, shard: int, field: str) -> None:
        columns, where = FieldColumns.of(field), self.where(corpus_idx)
        start = self._number(columns.start, corpus_idx)
        if start < 0:
            return
        file_idx = self._file_idx[field] + shard
        num_bytes = self._number(columns.num_bytes, corpus_idx)
        if not self._is_tar[field][shard]:
            attach_value(cut, field, self._lines.read(file_idx, start, num_bytes), where)
            return
        meta = self._data.read(
            file_idx, self._number(columns.meta_start, corpus_idx), self._number(columns.meta_bytes, corpus_idx)
        )
        suffix = self._index.meta["suffixes"][self._number(columns.suffix, corpus_idx)]
        data = self._data.read(file_idx, start, num_bytes), suffix
        attach_data(cut, field, meta, data, self._roots, where)

    def _number(self, name: str, corpus_idx: int) -> int:
        return int(self._index.locator(name)[corpus_idx])

    def _shard(self, corpus_idx: int) -> int:
        shard = self._number(SHARD, corpus_idx)
        if not 0 <= shard < len(self._files.cuts):
            raise self._index.damaged(f"it says that cut {corpus_idx} is in shard {shard} of {len(self._files.cuts)}")
        return shard

    def where(self, corpus_idx: int) -> str:
        """Name the manifest and the cut."""
        return f"{self._files.cuts[self._shard(corpus_idx)]}, cut {self._index.tags[corpus_idx]!r}"

    def close(self) -> None:
        """Release files and texts."""
        self._lines.close()
        self._data.close()


def decode_cut(line: bytes, roots: Roots, where: str) -> Any:
    """Return the cut of a line of a manifest.

    Raises:
        SourceError: It is none, says more than data may, or names a file outside of the roots.
    """
    record = decode_object(line, where)
    if not str(record.get("type")).endswith("Cut"):
        raise SourceError(
            f"a line is not a cut: it has the fields {sorted(record)}",
            where=where,
            fix="recordings, features and supervisions become cuts by lhotse's CutSet.from_manifests(...)",
        )
    return _records().cut_of(record, roots, where)


def attach_data(cut: Any, field: str, meta: bytes, data: tuple[bytes, str] | None, roots: Roots, where: str) -> None:
    """Attach to a cut the data that Shar stores for a field.

    Args:
        cut: Changed in columns.
        field: Field of Shar.
        meta: Its manifest as JSON.
        data: The data and the ending of their name; None: only the manifest, for what needs no data.
        roots: Where files may be.
        where: Location, for error messages.

    Raises:
        SourceError: The manifest is none, or the field is not one that Shar has.
    """
    part = _records().part_of_shar(decode_object(meta, where), roots, where)
    lhotse = import_lhotse()
    kinds = {"recording": lhotse.Recording, "features": lhotse.Features}
    if not isinstance(part, kinds.get(field, object)):
        raise SourceError(f"the field {field!r} of Shar has a {type(part).__mro__[2].__name__}", where=where)
    if data is not None:
        with lhotse_errors(f"read the data of {field!r}", where):
            lhotse.shar.utils.fill_shar_placeholder(manifest=part, data=data[0], tarpath=f"data{data[1]}")
    _set(cut, field, part, where)


def attach_value(cut: Any, field: str, line: bytes, where: str) -> str:
    """Attach to a cut a value that Shar stores as JSON lines; return the id of the cut that the line is for.

    Raises:
        SourceError: The line is no JSON object, or the field is one of lhotse's own.
    """
    record = decode_object(line, where)
    if field in record:
        _set(cut, field, record[field], where)
    return str(record.get("cut_id"))


def _set(cut: Any, field: str, value: Any, where: str) -> None:
    """Set a field whose name is that of a file: a custom one, or the recording or features themselves."""
    is_manifest = field in ("recording", "features") and not isinstance(value, _JSON)
    if not is_manifest and (hasattr(type(cut), field) or field in type(cut).__dataclass_fields__):
        raise SourceError(
            f"a field of Shar is named {field!r}, which cuts have already", where=where, fix="rename the field's files"
        )
    setattr(cut, field, value)


def _records() -> ModuleType:
    """Import the module that builds lhotse's objects."""
    import_lhotse()
    from . import record as cuts_record

    return cuts_record

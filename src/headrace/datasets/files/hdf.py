"""`HDFDataset`: sequences from HDF5 files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.sources import HDFSource

from ..cached import CachedDataset, SourceCorpus
from ..checks import absolute_index, absolute_name, refuse_cache_manager
from ..corpus import IndexedFiles, StoredCounts, check_files

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class HDFCorpus(SourceCorpus):
    """The sequences of HDF5 files. Where it is unpickled, the same files may have other times: they are opened again.

    Attributes:
        opened: The files, and the index that was named for them.
    """

    opened: tuple[list[str], str | None]

    def __reduce__(self) -> tuple[Any, ...]:
        return _opened_again, (type(self), {**self.__getstate__(), "source": None}, self.indexed_files())

    def stored_counts(self) -> StoredCounts:
        """Return how much the files hold, as the index says."""
        key = next(iter(self.source.specs), None)
        num_frames = 0 if key is None else int(self.index.lengths(key).sum(dtype=np.int64))
        return StoredCounts([file.path for file in self.index.files], len(self.index), num_frames)


class HDFDataset(CachedDataset):
    """Sequences of one or more HDF5 files in RETURNN's layout; several files follow one another.

    Sorting orders use the length of the first data key: "data" where there is an input, else the first target.

    Args:
        files: A file or a list of files; more can follow by `add_file`.
        use_cache_manager: Not offered: only `False` is accepted.
        index: "auto" keeps the index of the files in the user's cache folder, `None` only in memory; a path names an
            index that `headrace index` wrote, which must match the files.
        **kwargs: See `CachedDataset` and `Dataset`.

    Raises:
        SourceError: A file is missing, truncated, or does not fit the others.
    """

    def __init__(
        self,
        files: Files | None = None,
        use_cache_manager: bool = False,
        *,
        index: str | os.PathLike[str] | None = "auto",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_cache_manager(use_cache_manager, f"dataset {self.name!r}")
        self._index = absolute_index(index)
        self.files: list[str] = []
        if files is not None:
            paths = list(files) if isinstance(files, Iterable) and not isinstance(files, str | bytes) else [files]
            if not paths:
                fix = "name at least one HDF5 file"
                raise ConfigError("files is an empty list", where=f"dataset {self.name!r}", fix=fix)
            self._open([absolute_name(path) for path in paths])

    def _open(self, files: list[str]) -> None:
        source = HDFSource(files, index=self._index)
        if self._corpus is not None:
            self._corpus.close()
        self.files = files
        self._set_source(source, HDFCorpus)
        corpus = self._read
        assert isinstance(corpus, HDFCorpus)
        corpus.opened = files, self._index

    def add_file(self, filename: str | os.PathLike[str]) -> None:
        """Append a file to the corpus; takes effect with the next `init_seq_order`.

        Raises:
            SourceError: The file cannot be read or does not fit the others.
            ConfigError: The dataset was made with the path of an index, which cannot grow.
        """
        if self._index not in ("auto", None):
            raise ConfigError(
                "add_file cannot extend an index that was given by path",
                where=str(self._index),
                fix="leave index at 'auto'",
            )
        self._open([*self.files, absolute_name(filename)])

    def get_data_by_seq_tag(self, seq_tag: str, key: str) -> NDArray[Any]:
        """Return one data key of the sequence with this tag, whatever the current order."""
        self._check_key(key)
        return self.source.read(int(self.source.index.find_tags([seq_tag])[0]), key)

    def get_times(self, seq_idx: int) -> NDArray[Any]:
        """Return the times of the frames, where the file stores them."""
        assert isinstance(self.source, HDFSource)
        return self.source.read_times(self._corpus_idx(seq_idx))


def _opened_again(cls: type[HDFCorpus], state: dict[str, Any], before: Sequence[IndexedFiles]) -> HDFCorpus:
    corpus = cls.__new__(cls)
    vars(corpus).update(state)
    files, index = corpus.opened
    corpus.source = HDFSource(files, index=index)
    check_files(corpus.indexed_files(), before)
    return corpus

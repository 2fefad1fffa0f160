"""`check_format`: whether what a format's writer takes is what its source gives back, and what it does not, is refused.

Each check is one function of the format and a corpus that it holds; each raises `AssertionError` with what was found.
The corpora are in `format_corpora.py`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, HeadraceError
from headrace.sources import Source, Writer, open_source
from headrace.sources.formats import Format
from headrace.sources.registry import open_writer

from .format_corpora import BAD_TAGS, TAGS, Corpus, Seq, corpora, wrong_seqs
from .source_checks import check_source


def check_format(entry: Format, *, writer_options: Mapping[str, Any] | None = None) -> int:
    """Check that a format gives back what was written, or refuses it before anything is there.

    Call it from a test. It writes small corpora of many layouts (all dtypes, with and without a time axis, several
    axes, class indices with and without labels, several keys, no sequences), with and without `specs`, and reads them
    back:

    - A layout or labels that the format cannot hold are refused with a `HeadraceError`, and nothing is left on disk.
      Else each sequence comes back under its tag, bit for bit, and labels as they are, by `open_source` of the path
      alone; the source passes `check_source`, which pickles it, reads parts, into given memory, and by another reader.
      (A key without a time axis may come back as one frame; a class without a label may come after the others.)
    - A tag of any kind comes back, or is refused; so is a sequence of another layout, text, and no sequence at all.
      What is refused leaves no trace: the next sequence may be appended.
    - An existing target is refused unless `overwrite` is given, and a target that came into being meanwhile at the end.
      A closed writer takes no more. `abort`, or an error in the `with` block, leaves what was there before.
    - A file that was cut is a `HeadraceError`, or cut where nothing was. A source whose files were replaced gives what
      it gave, or a `HeadraceError`.

    Args:
        entry: The format; it has a writer.
        writer_options: Options of the writer that it cannot do without.

    Returns:
        The number of corpora that the format holds, at least 1.

    Raises:
        AssertionError: The format breaks the contract, or holds nothing; the text says how.
    """
    format = _CheckedFormat(entry, dict(writer_options or {}))
    held: list[Corpus] = []
    for corpus in corpora():
        with tempfile.TemporaryDirectory() as folder:
            if format.is_held(corpus, folder):
                held.append(corpus)
    format.require(bool(held), f"it holds none of the corpora, so nothing was checked; the last one: {format.refusal}")
    kinds = {corpus.kind: corpus for corpus in held if corpus.seqs}  # one of each: the others fail in the same way
    for corpus in kinds.values():
        for check in _CHECKS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    check(format, corpus, folder)
                except HeadraceError as error:
                    raise AssertionError(f"format {entry.name!r}: {corpus}: {error}") from error
    return len(held)


class _CheckedFormat:
    """A format, with its paths, writers and sources."""

    def __init__(self, entry: Format, writer_options: dict[str, Any]) -> None:
        self._entry, self._options = entry, writer_options
        self.refusal = ""  # why the last corpus is not held

    def path(self, folder: str, name: str = "corpus") -> str:
        """Return the name of a target."""
        return os.path.join(folder, name + self._entry.suffix)

    def writer(self, path: str, corpus: Corpus, **options: Any) -> Writer:
        """Open a writer for a corpus."""
        said: dict[str, Any] = {"specs": corpus.specs} if corpus.tells_specs else {}
        return open_writer(self._entry, path, **self._options, **said, labels=corpus.labels, **options)

    def write(self, path: str, corpus: Corpus, **options: Any) -> Writer:
        """Write a corpus; return the closed writer."""
        with self.writer(path, corpus, **options) as writer:
            for tag, arrays in corpus.seqs:
                writer.append(tag, arrays)
        return writer

    @contextmanager
    def source(self, path: str, corpus: Corpus) -> Iterator[Source]:
        """Open what was written."""
        key_option = self._entry.key_option
        options = {} if key_option is None else {key_option: next(iter(corpus.specs))}
        source = open_source(path, index=None, **options)
        try:
            yield source
        finally:
            source.close()

    def require(self, condition: bool, what: str) -> None:
        """Raise an `AssertionError` that names the format."""
        if not condition:
            raise AssertionError(f"format {self._entry.name!r}: {what}")

    def require_refusal(self, call: Callable[[], object], what: str) -> None:
        """Call something that has to raise a `HeadraceError`."""
        try:
            call()
        except HeadraceError:
            return
        raise AssertionError(f"format {self._entry.name!r}: {what}")

    def is_held(self, corpus: Corpus, folder: str) -> bool:
        """Write a corpus and read it; return whether the format can hold it."""
        try:
            writer = self.write(self.path(folder), corpus)
        except HeadraceError as error:
            self.refusal = str(error)
            self.require(not os.listdir(folder), f"{corpus} was refused, and left {os.listdir(folder)}")
            return False
        num_seqs = len(corpus.seqs)
        self.require(writer.num_seqs == num_seqs, f"num_seqs is {writer.num_seqs} after {num_seqs} sequences")
        with self.source(self.path(folder), corpus) as source:
            self.require_content(source, corpus)
            self._require_layout(source, corpus)
            if not corpus.lacks_labels:
                check_source(source)
        return True

    def require_content(self, source: Source, corpus: Corpus) -> None:
        """Compare all that a source gives with what was written."""
        num_seqs = len(corpus.seqs)
        self.require(len(source) == num_seqs, f"{num_seqs} sequences were written, {len(source)} are read")
        for corpus_idx, (tag, arrays) in enumerate(corpus.seqs):
            found_tag, found = source.tag(corpus_idx), source.read_seq(corpus_idx)
            self.require(found_tag == tag, f"the tag {tag!r} came back as {found_tag!r}")
            self.require(found.keys() == arrays.keys(), f"keys {list(arrays)} came back as {list(found)}")
            for key, array in arrays.items():
                same = _is_same(array, found[key], has_time=corpus.specs[key].has_time)
                what = f"{key!r} of {corpus} came back as another array: {found[key]!r}, not {array!r}"
                self.require(same, what)

    def _require_layout(self, source: Source, corpus: Corpus) -> None:
        if not corpus.seqs and not corpus.tells_specs:
            return  # without a data key nothing can have labels
        labels = {key: list(names) for key, names in source.labels.items() if key in corpus.labels}
        self.require(labels == corpus.labels, f"labels of {corpus} came back as {labels}")
        for key, spec in corpus.specs.items() if corpus.tells_specs else ():
            found = source.specs[key]
            same = found.sparse == spec.sparse and (spec.dim is None or found.dim == spec.dim)
            self.require(same, f"the layout {spec} of {key!r} came back as {found}")


def _is_same(array: NDArray[Any], found: NDArray[Any], *, has_time: bool) -> bool:
    shapes = [array.shape, *([] if has_time else [(1, *array.shape)])]
    return found.dtype == array.dtype and found.shape in shapes and found.tobytes() == array.tobytes()


# --- what is checked of one corpus of each kind; the folder is empty ---


def _check_end_of_writer(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    writer = format.write(format.path(folder), corpus)
    writer.close()
    writer.abort()  # neither does anything any more
    format.require_refusal(partial(writer.append, *corpus.seqs[0]), "a closed writer takes a sequence")
    with format.source(format.path(folder), corpus) as source:
        format.require_content(source, corpus)


def _check_target(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    """Check that what is there is not lost, and that what is given up leaves nothing."""
    path = format.path(folder)
    format.write(path, corpus)
    before = _content(folder)
    refused = "a target that exists is replaced without overwrite=True"
    format.require_refusal(lambda: format.writer(path, corpus).abort(), refused)
    for target, options in ((path, {"overwrite": True}), (format.path(folder, "other"), {})):
        writer = format.writer(target, corpus, **options)
        writer.append(*corpus.seqs[0])
        writer.abort()
        format.require(_content(folder) == before, f"an aborted writer changed {_changes(folder, before)}")
        with suppress(KeyboardInterrupt), format.writer(target, corpus, **options) as writer:
            writer.append(*corpus.seqs[0])
            _interrupt()
        format.require(_content(folder) == before, f"after an interrupt, changed are {_changes(folder, before)}")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _check_two_writers(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    """Check that of two writers of one target, neither loses nor mixes what the other wrote."""
    path, reverse = format.path(folder), replace(corpus, seqs=corpus.seqs[::-1])
    with format.writer(path, corpus) as first:
        try:
            second = format.writer(path, reverse)
        except ConfigError:
            second = None  # refused early, which is as well
        for one, other in zip(corpus.seqs, reverse.seqs, strict=True):
            first.append(*one)
            if second is not None:
                second.append(*other)
    before = _content(folder, hidden=False)
    if second is not None:
        format.require_refusal(second.close, "a second writer replaced what another one wrote meanwhile")
    format.require(_content(folder) == before, f"a second writer changed {_changes(folder, before)}")
    with format.source(path, corpus) as source:
        format.require_content(source, corpus)


def _check_tags(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    kept: list[Seq] = []
    arrays = [arrays for _, arrays in corpus.seqs]
    with format.writer(format.path(folder), corpus) as writer:
        for number, tag in enumerate(TAGS):
            seq = tag, arrays[number % len(arrays)]
            try:
                writer.append(*seq)
            except HeadraceError:
                continue
            kept.append(seq)
        for bad in BAD_TAGS:
            format.require_refusal(partial(writer.append, bad, arrays[0]), f"the tag {bad!r} is taken")
    format.require(writer.num_seqs == len(kept), f"num_seqs is {writer.num_seqs} after {len(kept)} sequences")
    with format.source(format.path(folder), corpus) as source:
        format.require_content(source, replace(corpus, seqs=kept))


def _check_wrong_seqs(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    """Check that a sequence of another layout is refused, also as the first one, and leaves no trace."""
    with format.writer(format.path(folder), corpus) as writer:
        for number, (tag, arrays) in enumerate(corpus.seqs):
            for what, wrong in wrong_seqs(corpus, is_first=not number and not corpus.tells_specs):
                refused = f"{what} is taken for a sequence of {corpus}"
                format.require_refusal(partial(writer.append, "wrong", wrong), refused)
            writer.append(tag, arrays)
    with format.source(format.path(folder), corpus) as source:
        format.require_content(source, corpus)


def _check_labels_of_others(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    """Check that labels of a key that is not there are refused, and leave nothing."""
    wrong = replace(corpus, labels={"no such key": ["a"]})
    refused = f"labels of a data key that is not there are taken with {corpus}"
    format.require_refusal(lambda: format.write(format.path(folder), wrong), refused)
    format.require(not os.listdir(folder), f"labels were refused, and left {os.listdir(folder)}")


def _check_truncated(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    format.write(format.path(folder), corpus)
    for name, content in _content(folder).items():
        path = os.path.join(folder, name)
        for num_bytes in sorted({0, len(content) // 2, len(content) - 1} - {-1, len(content)}):
            os.truncate(path, num_bytes)
            try:
                with format.source(format.path(folder), corpus) as source:
                    format.require_content(source, corpus)
            except HeadraceError:
                pass
            except AssertionError as error:
                what = f"{name} was cut to {num_bytes} of {len(content)} bytes, which is no error:"
                raise AssertionError(f"{what} {error}") from error
            with open(path, "wb") as file:
                file.write(content)


def _check_replaced(format: _CheckedFormat, corpus: Corpus, folder: str) -> None:
    """Check that a source does not give, under the tags that it knows, numbers of files that came later."""
    path = format.path(folder)
    others = [(tag, {key: np.flip(array).copy() for key, array in arrays.items()}) for tag, arrays in corpus.seqs]
    format.write(path, corpus)
    with format.source(path, corpus) as source:
        other = source.for_another_reader()
        format.require_content(source, corpus)
        format.write(path, replace(corpus, seqs=others), overwrite=True)
        for reader in (source, *([] if other is None else [other])):
            try:
                format.require_content(reader, corpus)
            except HeadraceError:
                continue
            finally:
                reader.close()


_CHECKS = (
    _check_end_of_writer,
    _check_target,
    _check_two_writers,
    _check_tags,
    _check_wrong_seqs,
    _check_labels_of_others,
    _check_truncated,
    _check_replaced,
)


def _content(folder: str, *, hidden: bool = True) -> dict[str, bytes]:
    """Return the files below a folder, by relative name; perhaps without those with a temporary name."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            relative = os.path.relpath(os.path.join(root, name), folder)
            if hidden or not relative.startswith("."):
                with open(os.path.join(root, name), "rb") as file:
                    found[relative] = file.read()
    return found


def _changes(folder: str, before: Mapping[str, bytes]) -> list[str]:
    """Return the names of the files that are there, gone or other than before."""
    now = _content(folder)
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))

"""Text of language models, by the rules of RETURNN's `LmDataset`.

Lines become symbols of an orthography, words or characters. The steps, in this order: white space between words becomes
one space; the text is split into words, or characters; the end symbol follows; symbols are replaced by a map, once;
unknown ones are replaced, or are an error; classes are looked up. The transcriptions of a Bliss corpus (XML) become
lines of text.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import IO, Any
from xml.etree.ElementTree import ParseError, XMLPullParser

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.files.cache.local_copies import local_copy
from headrace.files.utf8 import decode_utf8
from headrace.specs import DataSpec
from headrace.vocabularies.base import Vocabulary
from headrace.vocabularies.files import (
    digest_of,
    labels_of_list,
    labels_of_mapping,
    parse_literal,
    read_vocabulary_file,
)

from ..shared.fields import VocabularyField

_BLOCK_BYTES = 1 << 20
_HEADS = (b"<?xml", b"<corpus")


def is_bliss(path: str) -> bool:
    """Tell by the first bytes whether a file, which may be compressed with gzip, is XML."""
    try:
        with open_regular(path) as stored, gzip.open(stored) if path.endswith(".gz") else stored as file:
            return bytes(file.read(64)).removeprefix(b"\xef\xbb\xbf").startswith(_HEADS)
    except (OSError, EOFError) as error:
        raise SourceError(f"the corpus cannot be read: {error}", where=os.path.abspath(path)) from error


def write_transcriptions(source: IO[bytes], target: IO[bytes]) -> None:
    """Write the text of each segment as a line, white space in it as one space; memory does not grow with the file.

    Raises:
        SourceError: It is not XML, declares entities, or a segment has no `orth`.
    """
    parser: Any = XMLPullParser(events=("start", "end"))
    where = str(getattr(source, "name", "Bliss corpus"))
    depth, tail = 0, b""
    try:
        while block := source.read(_BLOCK_BYTES):
            # Nested entities can make gigabytes of a small file; a corpus needs none of its own.
            if b"<!ENTITY" in tail + block:
                raise SourceError("the XML declares entities", where=where, fix="write the characters as they are")
            tail = block[-8:]
            parser.feed(block)
            for event, element in parser.read_events():
                depth += 1 if event == "start" else -1
                if event == "end" and element.tag == "segment":
                    orth = element.find("orth")
                    if orth is None:
                        what = f"segment {element.get('name')!r} has no orth"
                        raise SourceError(what, where=where, fix="remove it, or add its text")
                    target.write(" ".join((orth.text or "").split()).encode() + b"\n")
                if event == "end" and element.tag in ("segment", "recording"):
                    element.clear()
    except ParseError as error:
        raise SourceError(f"this is not XML: {error}", where=where, fix="get the file again") from error
    if depth:
        raise SourceError("the XML ends inside of an element", where=where, fix="it is truncated: get it again")


def write_stripped(source: IO[bytes], target: IO[bytes]) -> None:
    """Write the lines of a file without ASCII white space at their ends."""
    rest = b""
    while block := source.read(_BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        target.writelines(line.strip() + b"\n" for line in lines)
    if rest:
        target.write(rest.strip() + b"\n")


@dataclass(frozen=True, slots=True)
class OrthOptions:
    """How a line is split into symbols.

    Attributes:
        word_based: Words, or else characters.
        word_end_symbol: With characters: what follows each word, in place of the space between words.
        seq_end_symbol: What follows the sequence.
        unknown_symbol: What stands for unknown symbols; `None`: they are left out.
        replaces_unknown: Whether unknown symbols are replaced, or else an error.
    """

    word_based: bool
    word_end_symbol: str | None
    seq_end_symbol: str | None
    unknown_symbol: str | None
    replaces_unknown: bool


class OrthSymbols(Vocabulary):
    """The symbols of an orthography.

    Args:
        labels: The symbol of each class.
        class_of: The class of each symbol.
        options: How a line is split.
        replacements: Symbol -> the symbols that it stands for.

    Raises:
        ConfigError: The end symbol or the one for unknown symbols has no class.
    """

    def __init__(
        self,
        labels: list[str],
        class_of: dict[str, int],
        options: OrthOptions,
        replacements: Mapping[str, list[str]],
    ) -> None:
        self.labels = labels
        self._class_of, self._options, self._replacements = class_of, options, dict(replacements)
        needed = {"unknown_symbol": options.unknown_symbol} if options.replaces_unknown else {}
        if options.seq_end_symbol not in self._replacements and not options.replaces_unknown:
            needed["seq_end_symbol"] = options.seq_end_symbol
        for name, symbol in needed.items():
            if symbol is not None and symbol not in class_of:
                what = f"{name} is {symbol!r}, which is none of the {len(labels)} symbols"
                raise ConfigError(what, where="LmDataset", fix=f"add it to the symbols, or give {name}=None")

    @property
    def identity(self) -> list[Any]:
        """Its kind, options, and a digest of the symbols."""
        digest = digest_of(self.labels, list(self._class_of.items()), list(self._replacements.items()))
        return [type(self).__name__, self.dim, asdict(self._options), digest]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the classes of the symbols of a line, `int32[T]`."""
        symbols = split_symbols(text, self._options.word_based, self._options.word_end_symbol)
        if self._options.seq_end_symbol is not None:
            symbols.append(self._options.seq_end_symbol)
        if self._replacements:
            replacements = self._replacements
            symbols = [new for symbol in symbols for new in replacements.get(symbol, (symbol,))]
        class_of = self._class_of
        try:
            return np.array([class_of[symbol] for symbol in symbols], np.int32)
        except KeyError as error:
            if not self._options.replaces_unknown:
                raise SourceError(
                    f"{error.args[0]!r} is none of the {self.dim} symbols",
                    fix="add it to the symbols, or give auto_replace_unknown_symbol=True",
                ) from None
        unknown = self._options.unknown_symbol
        known = [symbol if symbol in class_of else unknown for symbol in symbols]
        return np.array([class_of[symbol] for symbol in known if symbol is not None], np.int32)

    def decode(self, indices: Iterable[int]) -> str:
        """Return the symbols of classes: words with a space between them, or characters joined."""
        joint = " " if self._options.word_based else ""
        return joint.join(self.labels[class_idx] for class_idx in self.check_classes(indices))

    def class_of(self, symbol: str) -> int:
        """Return the class of a symbol.

        Raises:
            ConfigError: It has none.
        """
        if symbol not in self._class_of:
            raise ConfigError(f"{symbol!r} is none of the {self.dim} symbols", where="LmDataset", fix="add it to them")
        return self._class_of[symbol]


class OrthField(VocabularyField):
    """A line as classes of a vocabulary, in the dtype that RETURNN chooses, as it is or moved by one.

    Args:
        vocabulary: Vocabulary of symbols, or any other.
        dtype: Dtype of the arrays; `None` for the smallest of int8, uint8 and int32 that holds all classes.
        start: For input: the class that comes first, while the last one of the line is left out; else `None`.
    """

    def __init__(self, vocabulary: Vocabulary, dtype: str | None, start: int | None = None) -> None:
        super().__init__("text", vocabulary)
        dim = vocabulary.dim
        self._dtype = np.dtype(dtype or ("int8" if dim <= 128 else "uint8" if dim <= 256 else "int32"))
        self._start = start
        if self._dtype.kind not in "iu" or dim - 1 > np.iinfo(self._dtype).max:
            what = f"dtype is {self._dtype}, which does not hold {dim} classes"
            raise ConfigError(what, where="LmDataset", fix="give a wider one")

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return DataSpec(self._dtype.name, sparse=True, dim=self.vocabulary.dim)

    @property
    def identity(self) -> list[Any]:
        """Its kind, the vocabulary, dtype and start."""
        return [*super().identity, self._dtype.name, self._start]

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """Return the classes of a line without white space at its ends, `dtype[T]`."""
        classes = super().encode(value.strip(), where).astype(self._dtype)
        if self._start is not None and len(classes):
            classes[1:] = classes[:-1].copy()
            classes[0] = self._start
        return classes

    def __reduce__(self) -> tuple[Any, ...]:
        return OrthField, (self.vocabulary, self._dtype.name, self._start)


def split_symbols(text: str, word_based: bool, word_end_symbol: str | None = None) -> list[str]:
    """Return the words of a text, or its characters with one space between words, or an end symbol after each."""
    words = text.split()
    if word_based:
        return words
    if word_end_symbol is None:
        return list(" ".join(words))
    return [symbol for word in words or [""] for symbol in (*word, word_end_symbol)]


def read_symbol_map(path: str | os.PathLike[str]) -> tuple[list[str], dict[str, int]]:
    """Read a dict symbol -> class as a Python literal or JSON, or lines of "<symbol> <class>".

    Raises:
        SourceError: It is neither, or the classes are not 0..n - 1.
    """
    where = local_copy(path)
    text = decode_utf8(read_vocabulary_file(where), where).removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        return labels_of_mapping(parse_literal(text, where), where)
    class_of: dict[str, int] = {}
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        symbol, _, number = line.rstrip("\r").rpartition(" ")
        if not symbol or not number.isdecimal() or len(number) > 9:
            raise SourceError(f"{line!r} is not <symbol> <class>", where=f"{where}, line {line_number}")
        class_of[symbol] = int(number)
    return labels_of_mapping(class_of, where)


def read_replacements(path: str | os.PathLike[str], word_based: bool) -> dict[str, list[str]]:
    """Read a JSON dict from a symbol to the text that replaces it.

    Raises:
        SourceError: It is something else.
    """
    where = local_copy(path)
    found = parse_literal(decode_utf8(read_vocabulary_file(where), where), where)
    if not isinstance(found, Mapping) or not all(isinstance(item, str) for pair in found.items() for item in pair):
        raise SourceError("the replacements are not a dict symbol -> text", where=where, fix='for example {"b": "a a"}')
    return {symbol: split_symbols(text, word_based) for symbol, text in found.items()}


def read_tags(path: str | os.PathLike[str]) -> list[str]:
    """Read a file of tags, one a line; `.gz` is decompressed.

    Raises:
        SourceError: It cannot be read, or is a pickle.
    """
    return labels_of_list(decode_utf8(read_vocabulary_file(path), str(path)).splitlines(), str(path))[0]

"""`LmDataset`: lines of text, for language models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError
from headrace.files.cache.local_copies import local_copies
from headrace.files.locations import shown_url
from headrace.files.packed import is_packed
from headrace.sources.lines.lm_text import (
    OrthField,
    OrthOptions,
    OrthSymbols,
    is_bliss,
    read_replacements,
    read_symbol_map,
    read_tags,
    write_stripped,
    write_transcriptions,
)
from headrace.sources.lines.text import TextOptions, TextSource
from headrace.sources.shared.decompressed import plain_copy
from headrace.sources.shared.fields import Field
from headrace.sources.shared.paths import expand_path
from headrace.vocabularies.base import Vocabulary, init_vocabulary
from headrace.vocabularies.files import read_labels

from ..cached import CachedDataset, SourceCorpus
from ..checks import absolute_name

Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_NOT_OFFERED = {
    "use_cache_manager": "give local paths",
    "orth_post_process": "process the text beforehand, or use orth_replace_map_file or orth_vocab",
    "parse_orth_opts": "use word_based, word_end_symbol and seq_end_symbol, or orth_vocab",
    "phone_info": "convert words to phonemes beforehand, and give them as words: word_based=True",
    "add_random_phone_seqs": "it goes with phone_info",
    "_debug_limit_line_count": "cut the file: head -n 1000 corpus.txt",
}
_OFFERED = "orth_vocab, orth_symbols_file or orth_symbols_map_file, with word_based or characters"


class LmDataset(CachedDataset):
    """Lines of text files as classes of words, characters, or of any vocabulary: key "data".

    What comes out is that of RETURNN's dataset of this name, to the number, and so are the orders: sorting is by the
    bytes of a line. Unlike it, the files are read once and then at random, sequences can be found by their tags, the
    last line counts also where it does not end with a line end, and a file may be empty.

    Args:
        corpus_file: One file or several, patterns and URLs too, or a function that returns them: lines of text, also
            `.gz`, or the XML of a Bliss corpus, whose transcriptions count as lines.
        skip_empty_lines: Whether empty lines are no sequences; in compressed files also those of white space, in
            Bliss corpora none.
        seq_list_file: A file with the tags of all sequences, one a line, in place of "line-0", "line-1", ...
        orth_vocab: What `init_vocabulary` takes: a vocabulary, the path of a tokenizer, .... It makes all of the
            sequence: no end symbol is added.
        orth_symbols_file: Instead of it: the symbols, one a line.
        orth_symbols_map_file: Instead of it: lines of "<symbol> <class>", or a dict as a Python literal or JSON.
        orth_replace_map_file: A JSON dict from a symbol to the text that replaces it.
        word_based: Whether symbols are words, and not characters.
        word_end_symbol: With characters: what follows each word, in place of the space between words.
        seq_end_symbol: Symbol that is added at the end; `None`: none is.
        unknown_symbol: Symbol for unknown ones; `None`: they are left out. See the next option.
        auto_replace_unknown_symbol: Whether unknown symbols are replaced by it; without it, one is an error.
        log_auto_replace_unknown_symbols: Accepted; nothing is logged.
        log_skipped_seqs: Accepted; nothing is logged.
        error_on_invalid_seq: Whether a line with an unknown symbol is an error; else it is no sequence, from the start:
            it has no tag and no position in an order.
        add_delayed_seq_data: Whether there is a key "delayed" with the start symbol and all but the last class.
        delayed_seq_data_start_symbol: The start symbol.
        dtype: Dtype of the arrays; int8, uint8 or int32, whichever holds the classes, if `None`.
        tag_prefix: What stands before the number in a tag; "line-" if `None`.
        index: `"auto"` keeps where lines are in the user's cache folder, `None` works it out each time.
        **kwargs: See `CachedDataset` and `Dataset`. RETURNN's options `use_cache_manager`, `orth_post_process`,
            `parse_orth_opts`, `phone_info` and `add_random_phone_seqs` are not offered.

    Attributes:
        orth_vocab: The vocabulary of "data"; `None` where symbols were given in place of one.

    Raises:
        ConfigError: An option is wrong, or not offered.
        SourceError: A file is missing, or a line is not UTF-8 or has an unknown symbol (it names symbol and line).
    """

    _content_options = (
        "orth_vocab",
        "orth_symbols_file",
        "orth_symbols_map_file",
        "orth_replace_map_file",
        "word_based",
        "word_end_symbol",
        "seq_end_symbol",
        "unknown_symbol",
        "auto_replace_unknown_symbol",
        "add_delayed_seq_data",
        "delayed_seq_data_start_symbol",
        "dtype",
    )

    def __init__(
        self,
        corpus_file: Files | Any,
        *,
        skip_empty_lines: bool = True,
        seq_list_file: str | os.PathLike[str] | None = None,
        orth_vocab: Any = None,
        orth_symbols_file: Any = None,
        orth_symbols_map_file: Any = None,
        orth_replace_map_file: Any = None,
        word_based: bool = False,
        word_end_symbol: str | None = None,
        seq_end_symbol: str | None = "[END]",
        unknown_symbol: str | None = "[UNKNOWN]",
        auto_replace_unknown_symbol: bool = False,
        log_auto_replace_unknown_symbols: bool | int = 10,
        log_skipped_seqs: bool | int = 10,
        error_on_invalid_seq: bool = True,
        add_delayed_seq_data: bool = False,
        delayed_seq_data_start_symbol: str = "[START]",
        dtype: str | None = None,
        tag_prefix: str | None = None,
        index: str | None = "auto",
        use_cache_manager: bool = False,
        orth_post_process: Any = None,
        parse_orth_opts: Any = None,
        phone_info: Any = None,
        add_random_phone_seqs: int = 0,
        _debug_limit_line_count: int | None = None,
        **kwargs: Any,
    ) -> None:
        given = dict(locals())
        for name, fix in _NOT_OFFERED.items():
            if given[name]:
                raise ConfigError(f"LmDataset does not offer {name}={given[name]!r}, only {_OFFERED}", fix=fix)
        if index not in ("auto", None):
            raise ConfigError(f"index is {index!r}", where="LmDataset", fix='give "auto" or None')
        paths = {name: _path(name, given[name]) for name in _PATHS}
        self.orth_vocab: Vocabulary | None = None if orth_vocab is None else init_vocabulary(orth_vocab)
        options = OrthOptions(
            bool(word_based), word_end_symbol, seq_end_symbol, unknown_symbol, bool(auto_replace_unknown_symbol)
        )
        vocabulary = _vocabulary_of(self.orth_vocab, paths, options)
        fields: dict[str, Field] = {}
        if add_delayed_seq_data:
            fields["delayed"] = OrthField(vocabulary, dtype, _start_class(vocabulary, delayed_seq_data_start_symbol))
        fields["data"] = OrthField(vocabulary, dtype)
        super().__init__(**kwargs)
        corpus_file = corpus_file() if callable(corpus_file) else corpus_file
        named = [corpus_file] if isinstance(corpus_file, str | bytes | os.PathLike) else list(corpus_file)
        if not named:
            raise ConfigError("corpus_file is an empty list", where="LmDataset", fix="name at least one file")
        names = [name for file in named for name in expand_path(file, "LmDataset(corpus_file=)")]
        files, is_xml = zip(*map(_plain_file, local_copies(names)), strict=True)
        lines = TextOptions(
            files,
            tuple(map(shown_url, names)),
            fields,
            tag_prefix="line-" if tag_prefix is None else tag_prefix,
            skip_empty=tuple(bool(skip_empty_lines) and not xml for xml in is_xml),
            return_counts=True,
            skip_invalid=not error_on_invalid_seq,
            own_tags=None if paths["seq_list_file"] is None else tuple(read_tags(paths["seq_list_file"])),
        )
        self._set_source(TextSource.from_options(lines, index), LmCorpus)

    def get_target_list(self) -> list[str]:
        """Return ["data"]: what is to be predicted; "delayed" is the input."""
        return ["data"]


class LmCorpus(SourceCorpus):
    """The lines."""

    def sort_lengths(self, epoch: int | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Return `int[N]`: the bytes of each line, which RETURNN sorts by."""
        lengths: NDArray[np.int64] = self.index.locator("line_bytes")
        return lengths


_PATHS = ("seq_list_file", "orth_symbols_file", "orth_symbols_map_file", "orth_replace_map_file")


def _path(name: str, value: Any) -> str | None:
    value = value() if callable(value) else value
    if not isinstance(value, str | os.PathLike | None):
        raise ConfigError(f"{name} is {value!r}, not a path", where="LmDataset", fix="give one file")
    return None if value is None else absolute_name(value)


def _vocabulary_of(orth_vocab: Vocabulary | None, paths: Mapping[str, str | None], options: OrthOptions) -> Vocabulary:
    symbols, symbol_map = paths["orth_symbols_file"], paths["orth_symbols_map_file"]
    replace_map = paths["orth_replace_map_file"]
    choices = {"orth_vocab": orth_vocab, "orth_symbols_file": symbols, "orth_symbols_map_file": symbol_map}
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(f"LmDataset needs one of {', '.join(choices)}, got {given or 'none'}")
    if orth_vocab is not None:
        if replace_map is not None:
            raise ConfigError("orth_replace_map_file replaces symbols, which orth_vocab does not know")
        return orth_vocab
    labels, class_of = read_symbol_map(str(symbol_map)) if symbols is None else read_labels(symbols)
    replacements = {} if replace_map is None else read_replacements(replace_map, options.word_based)
    return OrthSymbols(labels, class_of, options, replacements)


def _start_class(vocabulary: Vocabulary, symbol: str) -> int:
    if isinstance(vocabulary, OrthSymbols):
        return vocabulary.class_of(symbol)
    labels = list(vocabulary.labels)
    if symbol not in labels:
        raise ConfigError(
            f"delayed_seq_data_start_symbol is {symbol!r}, which is not a label of the vocabulary",
            where="LmDataset",
            fix="name one of its labels, such as <s>",
        )
    return labels.index(symbol)


def _plain_file(path: str) -> tuple[str, bool]:
    """Return the path of plain lines, and whether the file was XML; lines of a compressed one have no outer spaces."""
    if is_bliss(path):
        return plain_copy(path, write_transcriptions, kind="bliss"), True
    return plain_copy(path, write_stripped, kind="stripped") if is_packed(path) else plain_copy(path), False

"""The files of a `MetaDataset`: which tags belong together, and lengths by tag and data key.

They hold data only: nothing of them is executed.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import read_tag_list
from headrace.index import CorpusIndex

from ...checks import absolute_name, check_path

SeqListFile = str | os.PathLike[str] | Mapping[str, "str | os.PathLike[str]"]

_JSON_ENDINGS = (".json", ".json.gz")
_PICKLE_ENDINGS = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


def absolute_names(seq_list_file: Any) -> Any:
    """Return the names of existing files as absolute paths: a copy may be made in another folder."""
    if seq_list_file is None:
        return None
    if isinstance(seq_list_file, Mapping):
        return {name: absolute_name(check_path("seq_list_file", path)) for name, path in seq_list_file.items()}
    return absolute_name(check_path("seq_list_file", seq_list_file))


def read_seq_lists(seq_list_file: SeqListFile, names: Sequence[str]) -> dict[str, CorpusIndex]:
    """Return the tags of some sub-datasets; entries at the same index of all lists belong together.

    Args:
        seq_list_file: A text file (a tag a line) or JSON list: the same tags in all sub-datasets; a JSON dict
            sub-dataset -> list; or a mapping sub-dataset -> file. JSON files end in `.json`, all may be packed (`.gz`).
        names: The sub-datasets.

    Raises:
        ConfigError: There is no list for one of them.
        SourceError: A file is missing, truncated, a pickle, or holds something else; or the lists differ in length.
    """
    if isinstance(seq_list_file, Mapping):
        _check_names(seq_list_file, names, "seq_list_file")
        lists = {name: _packed(_read_list(seq_list_file[name])) for name in names}
    else:
        content = _read_lists(seq_list_file)
        if isinstance(content, list):
            return dict.fromkeys(names, _packed(content))
        _check_names(content, names, str(seq_list_file))
        lists = {name: _packed(content[name]) for name in names}
    _check_sizes(lists, seq_list_file)
    return lists


def read_key_lengths(path: str, tags: Sequence[str], data_key: str) -> NDArray[np.int64]:
    """Return the length of one data key for each tag, `int64[N]`, from JSON tag -> data key -> length.

    Raises:
        SourceError: The file is missing, truncated or something else, or has no length for a tag.
    """
    lengths = _read_json(path, dict[str, dict[str, int]], '{"tag": {"data": 123, ...}, ...}')
    column = np.empty(len(tags), dtype=np.int64)
    for i, tag in enumerate(tags):
        length = lengths.get(tag, {}).get(data_key)
        if length is None:
            what = f"no length of {data_key!r} for the tag {tag!r}"
            raise SourceError(what, where=path, fix="give one for each sequence in seq_lens_file")
        column[i] = length
    return column


def _packed(tags: list[str]) -> CorpusIndex:
    return CorpusIndex.from_columns(tags=tags, lengths={})


def _check_names(lists: Mapping[str, Any], names: Sequence[str], where: str) -> None:
    missing = [name for name in names if name not in lists]
    if missing:
        raise ConfigError(
            f"no list of tags for the sub-dataset {missing[0]!r}, only for {sorted(lists)}",
            where=where,
            fix="give one for each sub-dataset that is used; they may be the same file",
        )


def _check_sizes(lists: Mapping[str, CorpusIndex], seq_list_file: SeqListFile) -> None:
    (first, tags), *others = lists.items()
    for name, other in others:
        if len(other) != len(tags):
            raise SourceError(
                f"the lists differ in length: {len(tags)} tags for {first!r}, {len(other)} for {name!r}",
                where=f"seq_list_file={seq_list_file!r}",
                fix="write one tag for each sequence into each list; the n-th ones belong together",
            )


def _read_list(path: str | os.PathLike[str]) -> list[str]:
    content = _read_lists(path)
    if isinstance(content, list):
        return content
    raise SourceError("a dict of lists where the list of one sub-dataset is expected", where=str(path))


def _read_lists(path: str | os.PathLike[str]) -> list[str] | dict[str, list[str]]:
    name = os.fspath(path)
    if name.endswith(_PICKLE_ENDINGS):
        opener = "gzip.open" if name.endswith(".gz") else "open"
        target = name.removesuffix(".gz").rpartition(".")[0] + ".json"
        code = f"import gzip, json, pickle; json.dump(pickle.load({opener}({name!r}, 'rb')), open({target!r}, 'w'))"
        raise SourceError(
            "pickle files are refused: reading one can run any code that it contains",
            where=name,
            fix=f"if you trust the file, convert it once in Python: {code}",
        )
    if name.endswith(_JSON_ENDINGS):
        form = list[str] | dict[str, list[str]]
        content: list[str] | dict[str, list[str]]
        content = _read_json(name, form, '["tag", ...] or {"sub-dataset": ["tag", ...], ...}')
        return content
    return read_tag_list(path)


def _read_json(path: str, form: Any, example: str) -> Any:
    try:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SourceError(
            f"the gzip data are truncated or wrong: {error}", where=path, fix="write the file again"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read the file: {error.strerror}", where=path, fix="check the path") from error
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"), type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SourceError(f"this is not what is expected here: {error}", where=path, fix=f"write {example}") from error

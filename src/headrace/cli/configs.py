"""Config files: from a path to a `RunPlan`, which is a dataset and the epochs to run.

TOML, JSON and Python literals are data: nothing in them is executed, and what they name as "module:function" is
imported only from modules that the user allowed or that lie beside the config. A relative file name is relative to the
config's folder. A `.py` config is the user's own program, and is run as one.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.datasets import Dataset
from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files.locations import is_url
from headrace.sources.formats import find_format
from headrace.sources.naming import check_callables

JOB_KEYS = ("dataset", "train", "epochs")
PATH_OPTIONS = frozenset(
    {
        "audio_root",
        "bpe_file",
        "corpus_file",
        "documents",
        "files",
        "huggingface_repo_dir",
        "index",
        "manifest",
        "model_file",
        "orth_replace_map_file",
        "orth_symbols_file",
        "orth_symbols_map_file",
        "path",
        "root",
        "segment_file",
        "seq_len_file",
        "seq_lens_file",
        "seq_list_file",
        "seq_list_filter_file",
        "seq_order_seq_lens_file",
        "special_symbols_via_file",
        "vocab_file",
    }
)
# Options that are a file name or a dict: options of Headrace, or, in "dataset_opts", of another library.
_PATH_OR_OPTIONS = frozenset({"dataset_opts", "source"})
# Options that may be the path of a tokenizer, or a word: "bytes", "chars", or, of "targets", the name of a data key.
_PATH_OR_WORD = frozenset({"orth_vocab", "targets", "vocab"})
_TOKENIZER_SUFFIXES = (".json", ".json.gz", ".model", ".model.gz")
# Options whose values hold no file names, though their keys, chosen by the user, may look like options.
_WITHOUT_PATHS = frozenset({"data_map", "data_dims", "data_dtypes", "map_outputs", "sampling_sizes"})

# Settings of a RETURNN config that are options of its dataset `train` there -> the option.
_SETTINGS_OF_RETURNN = {
    "batching": "seq_ordering",
    "window": "window",
    "context_window": "context_window",
    "chunking": "chunking",
    "shuffle_frames_of_nseqs": "shuffle_frames_of_nseqs",
    "min_chunk_size": "min_chunk_size",
    "chunking_variance": "chunking_variance",
}
_NOT_PATHS = frozenset({"auto"})  # words with a meaning of their own among the values of PATH_OPTIONS
_MAX_DEPTH = 60  # of dicts and lists in each other; MetaDatasets of MetaDatasets come to a dozen
_EPOCHS = re.compile(r"(\d+)(?:\.\.(\d+))?")
_HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
_PARSE_ERRORS = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)  # what the three parsers raise


@dataclass(frozen=True)
class RunPlan:
    """What a config describes.

    Attributes:
        dataset: Options for `init_dataset`, or a dataset that a `.py` config made.
        epochs: The epochs to run.
    """

    dataset: Mapping[str, Any] | Dataset
    epochs: range = range(1, 2)


def load_job(path: Path, settings: Iterable[str] = (), *, callables: Iterable[str] = ()) -> RunPlan:
    """Read a config file.

    Args:
        path: `.toml`, `.json` or `.py`; any other name holds one Python literal.
        settings: "key=value" texts that override options of the dataset, see `parse_settings`.
        callables: Modules whose functions and classes the config may name, see `check_callables`.

    Raises:
        ConfigError: The file cannot be read or understood, has an unknown key, or names something that is not allowed.
    """
    if not path.is_file():
        what = "this is a folder, not a config file" if path.is_dir() else "no such config file"
        raise ConfigError(what, where=str(path), fix="give the path of a .toml, .json or .py file")
    folder = path.resolve().parent
    if path.suffix == ".py":
        job = _job_of(_run_program(path, folder), str(path), strict=False)
    else:
        # For "module:function". Last on the path, so that a file beside the config cannot shadow an installed module.
        extend_import_path(folder, front=False)
        content = _parse(path)
        check_callables(content, where=str(path), callables=callables, folder=str(folder))
        job = _job_of(_resolve_paths(content, folder), str(path), strict=True)
    settings = list(settings)
    if not settings:
        return job
    if not isinstance(job.dataset, Mapping):
        raise ConfigError(
            f"--set cannot change a {type(job.dataset).__name__} that is built already",
            where=str(path),
            fix="let the program define `dataset` as a dict of options, or a function that returns one",
        )
    return dataclasses.replace(job, dataset={**job.dataset, **parse_settings(settings)})


@contextmanager
def named_config(path: Path) -> Iterator[None]:
    """Add the name of the config to a ConfigError that is raised inside: its text may name an option only."""
    try:
        yield
    except ConfigError as error:
        error.add_note(f"config: {path}")
        raise


def parse_epochs(value: object, where: str) -> range:
    """Return the epochs of `3` or "3" (epochs 1, 2, 3) or "2..4" (epochs 2, 3, 4).

    Raises:
        ConfigError: It has another form, or names no epoch.
    """
    text = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    match = _EPOCHS.fullmatch(text.strip())
    if match:
        first, last = (1, int(match[1])) if match[2] is None else (int(match[1]), int(match[2]))
        if 1 <= first <= last:
            return range(first, last + 1)
    raise ConfigError(
        f"epochs = {value!r} names no epochs",
        where=where,
        fix='write 3 for epochs 1, 2, 3, or "2..4" for those; the first epoch is 1',
    )


def parse_settings(settings: Iterable[str] | None) -> dict[str, Any]:
    """Return the options that "key=value" texts give: a value is JSON or a Python literal, or else a text.

    Raises:
        ConfigError: One has another form.
    """
    options: dict[str, Any] = {}
    for setting in settings or ():
        key, equals, text = setting.partition("=")
        if not equals or not key:
            raise ConfigError(
                "expected key=value", where=f"--set {setting}", fix="for example --set seq_ordering=random"
            )
        options[key] = _parse_value(text)
    return options


def _parse_value(text: str) -> Any:
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except _PARSE_ERRORS:
            continue
    return text


def _parse(path: Path) -> Any:
    content = path.read_bytes()
    if content.startswith(_HDF5_MAGIC):
        raise ConfigError(
            "this is an HDF5 file, not a config",
            where=str(path),
            fix='see `headrace inspect`, or write a config such as {"class": "HDFDataset", "files": ["a.hdf"]}',
        )
    try:
        text = content.decode("utf-8-sig")  # some editors put a byte order mark before UTF-8
        if path.suffix == ".toml":
            parsed: Any = tomllib.loads(text)
        elif path.suffix == ".json":
            parsed = json.loads(text)
        else:
            parsed = ast.literal_eval(text.strip())
        _check_depth(parsed)
    except _PARSE_ERRORS as error:
        if path.suffix not in (".toml", ".json"):
            _refuse_data(path)
        form = {".toml": "TOML", ".json": "JSON"}.get(path.suffix, "a Python literal")
        raise ConfigError(
            f"not {form}: {error}",
            where=str(path),
            fix="the extension selects the format: .toml, .json, .py, else one Python literal",
        ) from error
    return parsed


def _refuse_data(path: Path) -> None:
    """Refuse a file of a known format of data, which is named in the place of a config.

    Raises:
        ConfigError: It is one.
    """
    try:
        entry = find_format(path)
    except SourceError:
        return
    if entry.name != "text":
        raise ConfigError(
            f"this is a file of data ({entry.title}), not a config",
            where=str(path),
            fix=f'see `headrace inspect`, or write a config such as {{"class": "SourceDataset", "source": "{path}"}}',
        )


def _check_depth(value: Any) -> None:
    """Raise a RecursionError if a value is nested too deeply for the code that reads it later."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (Mapping, list, tuple))
            for child in (item.values() if isinstance(item, Mapping) else item)
        ]
        if not level:
            return
    raise RecursionError(f"nested more than {_MAX_DEPTH} levels deep")


def _run_program(path: Path, folder: Path) -> dict[str, Any]:
    extend_import_path(folder, front=True)
    try:
        return runpy.run_path(str(path))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "returnn":
            raise
        raise ConfigError(
            f"the config imports {error.name}, which is not installed",
            where=str(path),
            fix="install it; or, if only CachedFile is needed, write `from headrace import CachedFile`",
        ) from error
    except SyntaxError as error:
        raise ConfigError(f"not Python: {error.msg}", where=f"{error.filename}, line {error.lineno}") from error


def extend_import_path(folder: Path, *, front: bool) -> None:
    """Let modules of a folder be imported: before all others, or where there is no other one of the name."""
    if str(folder) not in sys.path:
        sys.path.insert(0 if front else len(sys.path), str(folder))


def _job_of(content: Any, where: str, *, strict: bool) -> RunPlan:
    """Find the dataset among the top-level names; `strict` refuses unknown ones (a program may define more)."""
    if not isinstance(content, Mapping):
        raise ConfigError(f"expected a dict of options, got a {type(content).__name__}", where=where)
    if strict and "class" in content:
        options = {key: value for key, value in content.items() if key != "epochs"}
        return RunPlan(options, parse_epochs(content["epochs"], where)) if "epochs" in content else RunPlan(options)
    unknown = [str(key) for key in content if key not in JOB_KEYS]
    if strict and unknown:
        fix = did_you_mean(unknown[0], (*JOB_KEYS, "class"))
        raise ConfigError(f"unknown key {unknown[0]!r}", where=where, fix=fix)
    found = [name for name in ("dataset", "train") if name in content]
    if len(found) != 1:
        what = "both `dataset` and `train` are defined" if found else "neither `dataset` nor `train` is defined"
        raise ConfigError(what, where=where, fix="define one of them: options with a `class`")
    dataset: Any = content[found[0]]
    if not strict and callable(dataset):
        dataset = dataset()
    if not isinstance(dataset, (Mapping, Dataset)):
        kind = type(dataset).__name__
        raise ConfigError(f"`{found[0]}` is a {kind}, not a dict of options or a Dataset", where=where)
    if not strict and found[0] == "train" and isinstance(dataset, Mapping):
        _refuse_settings_of_returnn(dataset, content, where)
    return RunPlan(dataset, parse_epochs(content["epochs"], where)) if "epochs" in content else RunPlan(dataset)


def _refuse_settings_of_returnn(dataset: Mapping[str, Any], content: Mapping[str, Any], where: str) -> None:
    """Refuse settings beside `train` that RETURNN takes for options of it.

    Raises:
        ConfigError: There is one, and `train` does not have the option itself.
    """
    for setting, option in _SETTINGS_OF_RETURNN.items():
        value = content.get(setting)
        if isinstance(value, (int, float, str, dict, tuple, list)) and value and dataset.get(option) is None:
            raise ConfigError(
                f"the setting {setting} = {value!r} is beside `train`, where it has no effect",
                where=where,
                fix=f"write {option!r}: {value!r} into `train`",
            )


def _resolve_paths(value: Any, folder: Path) -> Any:
    """Return a copy in which the file names that PATH_OPTIONS hold, at any depth, are joined to `folder`."""
    if isinstance(value, Mapping):
        return {option: _resolve_option(option, item, folder) for option, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_resolve_paths(item, folder) for item in value)
    return value


def _resolve_option(option: str, value: Any, folder: Path) -> Any:
    if option in _WITHOUT_PATHS or (option == "dataset_opts" and isinstance(value, Mapping)):
        return value
    names_tokenizer = option in _PATH_OR_WORD and isinstance(value, str) and value.endswith(_TOKENIZER_SUFFIXES)
    if (
        not names_tokenizer
        and option not in PATH_OPTIONS
        and (option not in _PATH_OR_OPTIONS or isinstance(value, Mapping))
    ):
        return _resolve_paths(value, folder)

    def join(text: str) -> str:
        return text if text in _NOT_PATHS or is_url(text) else os.path.join(folder, os.path.expanduser(text))

    return _map_texts(value, join)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of a nested tree in which each text is changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_map_texts(item, change) for item in value)
    return value

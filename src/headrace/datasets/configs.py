"""`init_dataset`: a dataset from a dict, as configs write it.

Nothing that a config says is evaluated. Text that stands for a callable has the form "package.module:function" and is
imported.
"""

from __future__ import annotations

import ast
import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError, NotCarriedOverError
from headrace.files.cache.entry import CachedFile
from headrace.order import parse_seq_ordering
from headrace.sources.naming import (
    CALLABLE,
    NAMING_OPTIONS,
    NamedClasses,
    check_callables,
    check_options,
    is_ordering,
    resolve_named,
)
from headrace.sources.naming import resolve_callable as resolve_callable

from .base import Dataset, dataset_text
from .digests import given_options, options_text

_NOT_CONFIGURED = {"CachedDataset", "CachedDataset2", "Dataset", "DatasetSeq", "FromListDataset", "MapDatasetBase"}
_EXPORTED = sys.modules[str(__package__)].__all__  # the package is imported before its modules
_NAMES = [name for name in _EXPORTED if "Dataset" in name and name not in _NOT_CONFIGURED]
# Documented classes that are not offered: what to write instead.
_INSTEAD = {
    **dict.fromkeys(
        ("BundleFile", "ExternSprintDataset", "NextGenHDFDataset", "SprintCacheDataset", "SprintDatasetBase"),
        "HDFDataset, after RETURNN's tools/hdf_dump.py",
    ),
    **dict.fromkeys(("Enwik8Corpus", "TextDictDataset"), "LmDataset, or SourceDataset over the text"),
    **dict.fromkeys(("StereoDataset", "StereoHdfDataset"), "HDFDataset with two keys"),
    "BlissDataset": "AudioDataset or OggZipDataset; RETURNN's tools/bliss-to-ogg-zip.py makes the archive",
    "ChunkShuffleDataset": "chunking of the loader, with an ordering that shuffles",
    "ClusteringDataset": "MetaDataset, with a dataset of the clusters",
    "LibriSpeechCorpus": "OggZipDataset, or AudioDataset with a manifest",
    "MegatronDataset": "SourceDataset over a TokenSource",
    "NemoSpeechDataset": "AudioDataset: its manifests have the path, the text and the length of each recording",
    "NumpyDumpDataset": "MapDatasetWrapper over a map-style dataset of `np.load(path, mmap_mode='r')`",
    "RawWavDataset": "SourceDataset over an AudioFolderSource",
    "SiameseHDFDataset": "a class of your own over HDFDataset",
    "TimitDataset": "AudioDataset with a manifest",
    "TranslationDataset": "MetaDataset over two LmDatasets",
}
# What RETURNN writes into a config for its own processes. It has no effect here.
_INTERNAL_OF_RETURNN = ("_distrib_info", "_meta_info_cache")
_READ_LATER = frozenset({"class", "map_seq", "map_seq_stream"})  # by what they are options of
_LOGGER = logging.getLogger("headrace.datasets")
_CLASSES = NamedClasses("dataset", Dataset, __package__, dict.fromkeys(_NAMES, __package__))  # imported when asked for

DatasetConfig = Dataset | Mapping[str, Any] | str | Callable[[], Any]


def init_dataset(
    config: DatasetConfig,
    extra_kwargs: Mapping[str, Any] | None = None,
    default_kwargs: Mapping[str, Any] | None = None,
    *,
    parent_dataset: Dataset | None = None,
    callables: Iterable[str] | None = None,
) -> Dataset:
    """Make a dataset and initialize it.

    Args:
        config: A dataset (initialized again, and returned); a dict whose key "class" is a name or a class; a function
            that returns one of these; or text: a Python literal dict, "ClassName:option=value,...", or a comma list of
            HDF5 files.
        extra_kwargs: Options that override those of the config.
        default_kwargs: Options used where the config has none.
        parent_dataset: Its `random_seed_offset` and sharding are defaults, too.
        callables: The modules whose functions and classes the config may name as "package.module:name". By default a
            text may name none, as it is data, and a dict any: it is your program's own. Give `()` with a dict that you
            read from a file of unknown origin.

    Raises:
        ConfigError: An unknown class or option; the nearest valid name is given. Or the config names what it may not.
    """
    if isinstance(config, Dataset):
        config.initialize()
        return config
    try:
        if callable(config):
            again = config()
            return init_dataset(again, extra_kwargs, default_kwargs, parent_dataset=parent_dataset, callables=callables)
        if isinstance(config, str):
            config, callables = _parse_text(config), callables or ()
        if callables is not None:
            check_callables(config, where="dataset config", callables=callables)
        if not isinstance(config, Mapping):
            fix = 'write {"class": "HDFDataset", ...}'
            raise ConfigError(f"a dataset is described by a dict, got {type(config).__name__}", fix=fix)
        options = dict(default_kwargs or {})
        if parent_dataset is not None:
            options["random_seed_offset"] = parent_dataset.random_seed_offset
            options.update(_num_shards=parent_dataset.num_shards, _shard_index=parent_dataset.shard_index)
        dataset = _make({**options, **config, **(extra_kwargs or {})})
        dataset.initialize()
    except RecursionError as error:
        raise ConfigError("the config is nested too deeply", fix="does it hold itself?") from error
    return dataset


def _make(options: dict[str, Any]) -> Dataset:
    if "class" not in options:
        raise ConfigError(
            f"a dataset config needs the key 'class'; it has {sorted(map(str, options))}",
            fix=f"one of {', '.join(_NAMES)}",
        )
    cls = resolve_class(options.pop("class"))
    for name in _INTERNAL_OF_RETURNN:
        if options.pop(name, None) is not None:
            _LOGGER.info("the option %r of %s is for RETURNN's own processes and has no effect", name, cls.__name__)
    check_options(cls, options, _CLASSES.kind)
    for name in (NAMING_OPTIONS & options.keys()) - _READ_LATER:
        value = options[name]
        if isinstance(value, str) and CALLABLE.fullmatch(value):
            is_order = name == "seq_ordering" and is_ordering(value)
            options[name] = parse_seq_ordering(value) if is_order else resolve_named(name, value)
    return cls(**options)


def config_text(config: Any, epoch: int = 1) -> str:
    """Return a text of a dataset's config, or of a dataset in an epoch: equal for those that deliver the same.

    Options that say how fast, or in which folder, are left out, at any depth; see `Dataset.idle_options`.
    """

    def text_of(value: Any) -> str | None:
        if isinstance(value, CachedFile):
            return repr(os.path.basename(value.filename))
        if not isinstance(value, Mapping) or "class" not in value:
            return dataset_text(value, epoch)
        try:
            cls = resolve_class(value["class"])
        except (ConfigError, NotCarriedOverError):  # a source, a vocabulary
            return None
        options = {str(name): option for name, option in value.items() if name != "class"}
        given = given_options(cls, (), options)
        return f"{cls.__name__} {options_text(given, text_of)}"

    return options_text(config, text_of)


def resolve_class(name: str | type[Dataset]) -> type[Dataset]:
    """Return a dataset class by its name, or by "package.module:Class".

    Raises:
        ConfigError: There is no such class.
        NotCarriedOverError: RETURNN has such a class; the fix names what to use instead.
    """
    if isinstance(name, str) and name in _INSTEAD:
        raise NotCarriedOverError(
            f"RETURNN's {name} is not offered",
            fix=f"use {_INSTEAD[name]}. Classes here: {', '.join(sorted(_NAMES))}",
        )
    return _CLASSES.resolve(name)


def _parse_text(text: str) -> Mapping[str, Any]:
    text = text.strip()
    if text.startswith("{"):
        return _parse_literal(text)
    head, colon, rest = text.partition(":")
    if colon and head in _NAMES:
        return {"class": head, **_parse_assignments(rest, text)}
    if colon and re.fullmatch(r"\w*[Dd]ata[Ss]et\w*", head):
        resolve_class(head)  # a misspelt class is not a file name
    files = [str(Path(name.strip())) for name in text.split(",") if name.strip()]
    if not files:
        raise ConfigError("empty text instead of a dataset config")
    return {"class": "HDFDataset", "files": files}


def _parse_assignments(text: str, whole: str) -> dict[str, Any]:
    """Parse "a=1,b='x,y',c=(1,2)" as the keyword arguments of a call, whose values must be literals."""
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        options = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        fix = "write ClassName:option=value,..."
        raise ConfigError(f"cannot read the options of {whole!r}: {error}", fix=fix) from error
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        raise ConfigError(f"options are written option=value: {whole!r}")
    return options


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)  # a bare word is text: seq_ordering=random


def _parse_literal(text: str) -> Mapping[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError) as error:  # MemoryError: of the parser, nested too deeply
        fix = "a config text is data: no calls, no names"
        raise ConfigError(f"not a Python literal: {text[:80]!r} ({error})", fix=fix) from error
    if not isinstance(value, dict):
        raise ConfigError(f"a dataset config is a dict, got {type(value).__name__}")
    return value

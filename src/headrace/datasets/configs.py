"""`init_dataset`: a dataset from a dict, as configs write it.

Nothing that a config says is evaluated. Text that stands for a callable has the form "package.module:function" and is
imported.
"""

from __future__ import annotations

import ast
import logging
import os
import re
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

# Module of this room by class; it is imported when the class is asked for: a worker needs one of them.
_MODULE_OF = {
    "AudioDataset": "files.audio",
    "CombinedDataset": "join.combined",
    "ConcatDataset": "join.combined",
    "ConcatSeqsDataset": "wrap.concat_seqs",
    "DistributeFilesDataset": "distribute.dataset",
    "HDFDataset": "files.hdf",
    "HuggingFaceDataset": "files.hugging_face",
    "LmDataset": "files.lm",
    "MapDataset": "files.mapped",
    "MapDatasetWrapper": "files.mapped",
    "MetaDataset": "join.meta",
    "MultiEpochDataset": "wrap.multi_epoch",
    "MixDataset": "join.mix",
    "MultiProcDataset": "wrap.multi_proc",
    "OggZipDataset": "files.ogg_zip",
    "PostprocessingDataset": "wrap.postprocessing.dataset",
    "SourceDataset": "files.source",
    "StaticDataset": "files.mapped",
}
# Documented classes that are not offered: what to write instead.
_INSTEAD = {
    "BlissDataset": "AudioDataset or OggZipDataset; RETURNN's tools/bliss-to-ogg-zip.py makes the archive",
    "BundleFile": "HDFDataset, after RETURNN's tools/hdf_dump.py",
    "ChunkShuffleDataset": "chunking of the loader, with an ordering that shuffles",
    "ClusteringDataset": "MetaDataset, with a dataset of the clusters",
    "Enwik8Corpus": "LmDataset, or SourceDataset over the text",
    "ExternSprintDataset": "HDFDataset, after RETURNN's tools/hdf_dump.py",
    "LibriSpeechCorpus": "OggZipDataset, or AudioDataset with a manifest",
    "MegatronDataset": "SourceDataset over a TokenSource",
    "NemoSpeechDataset": "AudioDataset: its manifests have the path, the text and the length of each recording",
    "NextGenHDFDataset": "HDFDataset, after RETURNN's tools/hdf_dump.py",
    "NumpyDumpDataset": "MapDatasetWrapper over a map-style dataset of `np.load(path, mmap_mode='r')`",
    "RawWavDataset": "SourceDataset over an AudioFolderSource",
    "SiameseHDFDataset": "a class of your own over HDFDataset",
    "SprintCacheDataset": "HDFDataset, after RETURNN's tools/hdf_dump.py",
    "SprintDatasetBase": "HDFDataset, after RETURNN's tools/hdf_dump.py",
    "StereoDataset": "HDFDataset with two keys",
    "StereoHdfDataset": "HDFDataset with two keys",
    "TextDictDataset": "LmDataset, or SourceDataset over the text",
    "TimitDataset": "AudioDataset with a manifest",
    "TranslationDataset": "MetaDataset over two LmDatasets",
}
# What RETURNN writes into a config for its own processes. It has no effect here.
_INTERNAL_OF_RETURNN = ("_distrib_info", "_meta_info_cache")
_READ_LATER = frozenset({"class", "map_seq", "map_seq_stream"})  # by what they are options of
_LOGGER = logging.getLogger("headrace.datasets")
_CLASSES = NamedClasses(
    "dataset", Dataset, __package__, {name: f"{__package__}.{module}" for name, module in _MODULE_OF.items()}
)

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
    try:
        return _init_dataset(config, extra_kwargs, default_kwargs, parent_dataset, callables)
    except RecursionError as error:
        raise ConfigError("the config is nested too deeply", fix="does it hold itself?") from error


def _init_dataset(
    config: DatasetConfig,
    extra_kwargs: Mapping[str, Any] | None,
    default_kwargs: Mapping[str, Any] | None,
    parent_dataset: Dataset | None,
    callables: Iterable[str] | None,
) -> Dataset:
    if isinstance(config, Dataset):
        config.initialize()
        return config
    if callable(config):
        return init_dataset(config(), extra_kwargs, default_kwargs, parent_dataset=parent_dataset, callables=callables)
    if isinstance(config, str):
        config, callables = _parse_text(config), callables or ()
    if callables is not None:
        check_callables(config, where="dataset config", callables=callables)
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"a dataset is described by a dict, got {type(config).__name__}", fix='write {"class": "HDFDataset", ...}'
        )
    options = {**(default_kwargs or {}), **_defaults_of_parent(parent_dataset), **config, **(extra_kwargs or {})}
    if "class" not in options:
        raise ConfigError(
            f"a dataset config needs the key 'class'; it has {sorted(map(str, options))}",
            fix=f"one of {', '.join(_MODULE_OF)}",
        )
    cls = resolve_class(options.pop("class"))
    for name in _INTERNAL_OF_RETURNN:
        if options.pop(name, None) is not None:
            _LOGGER.info("the option %r of %s is for RETURNN's own processes and has no effect", name, cls.__name__)
    check_options(cls, options, _CLASSES.kind)
    for name in NAMING_OPTIONS & options.keys():
        if name not in _READ_LATER:
            options[name] = _resolve_option(name, options[name])
    dataset = cls(**options)
    dataset.initialize()
    return dataset


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
            fix=f"use {_INSTEAD[name]}. Classes here: {', '.join(sorted(_MODULE_OF))}",
        )
    return _CLASSES.resolve(name)


def _resolve_option(name: str, value: Any) -> Any:
    if not (isinstance(value, str) and CALLABLE.fullmatch(value)):
        return value
    if name == "seq_ordering" and is_ordering(value):
        return parse_seq_ordering(value)
    return resolve_named(name, value)


def _defaults_of_parent(parent: Dataset | None) -> dict[str, Any]:
    if parent is None:
        return {}
    return {
        "random_seed_offset": parent.random_seed_offset,
        "_num_shards": parent.num_shards,
        "_shard_index": parent.shard_index,
    }


def _parse_text(text: str) -> Mapping[str, Any]:
    text = text.strip()
    if text.startswith("{"):
        return _literal(text, text)
    head, colon, rest = text.partition(":")
    if colon and head in _MODULE_OF:
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
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ConfigError(f"options are written option=value: {whole!r}")
        return {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"cannot read the options of {whole!r}: {error}", fix="write ClassName:option=value,..."
        ) from error


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)  # a bare word is text: seq_ordering=random


def _literal(text: str, whole: str) -> Mapping[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, MemoryError) as error:  # MemoryError: of the parser, nested too deeply
        raise ConfigError(
            f"not a Python literal: {whole[:80]!r} ({error})", fix="a config text is data: no calls, no names"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"a dataset config is a dict, got {type(value).__name__}")
    return value

"""Which files hold the cuts of a corpus: manifests, or the shards of lhotse's Shar format."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, SourceError, did_you_mean

_MANIFESTS = (".jsonl", ".jsonl.gz")
_DATA = (".tar", *_MANIFESTS)
CUTS = "cuts"


@dataclass(frozen=True, slots=True)
class CutFiles:
    """Absolute paths of all files of a corpus.

    Attributes:
        cuts: Manifests of cuts, one a shard.
        fields: Field of Shar -> its files, one a shard.
    """

    cuts: tuple[str, ...]
    fields: dict[str, tuple[str, ...]]

    @property
    def all(self) -> list[str]:
        """All files: the manifests, then the fields, one after the other."""
        return [*self.cuts, *(path for paths in self.fields.values() for path in paths)]

    def file_idx(self, field: str, shard: int) -> int:
        """Return the place of a field's shard in `all`."""
        return len(self.cuts) * (1 + list(self.fields).index(field)) + shard


def is_gzipped(path: str) -> bool:
    """Tell whether a manifest is compressed, by its name, as lhotse does."""
    return path.endswith(".gz")


def find_cut_files(files: Any) -> CutFiles:
    """Return what a user named.

    Args:
        files: The path of a manifest (`.jsonl`, `.jsonl.gz`) or of a Shar folder, a list of such, or a dict field ->
            shards as lhotse's `CutSet.from_shar(fields=...)` takes it, with "cuts" among the fields.

    Raises:
        ConfigError: It has another form.
        SourceError: A folder is no Shar, or the fields have not as many shards as there are manifests.
    """
    if isinstance(files, Mapping):
        return _of_fields(files)
    given = [files] if isinstance(files, str | os.PathLike) or not isinstance(files, Iterable) else list(files)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise ConfigError(
                f"cuts are in files, and this is a {type(path).__name__}: {path!r}",
                where="CutSource",
                fix="give the path of a manifest or of a Shar folder, a list of such, or a dict of Shar fields",
            )
    paths = [os.path.abspath(path) for path in given]
    folders = [path for path in paths if os.path.isdir(path)]
    if not folders:
        return CutFiles(tuple(_checked_manifest(path) for path in paths), {})
    if len(folders) < len(paths):
        raise ConfigError("Shar folders and manifests cannot be mixed", where=", ".join(paths), fix="make two sources")
    parts = [_in_folder(folder) for folder in folders]
    for folder, part in zip(folders[1:], parts[1:], strict=True):
        if part.fields.keys() != parts[0].fields.keys():
            raise SourceError(
                f"the Shar folder has the fields {sorted(part.fields)}, the first one {sorted(parts[0].fields)}",
                where=folder,
                fix='give a dict with the fields that all of them have: {"cuts": [...], "recording": [...]}',
            )
    fields = {name: tuple(path for part in parts for path in part.fields[name]) for name in parts[0].fields}
    return CutFiles(tuple(path for part in parts for path in part.cuts), fields)


def _checked_manifest(path: str) -> str:
    if not path.endswith(_MANIFESTS):
        raise ConfigError(
            "this is no manifest of cuts that can be read line by line",
            where=path,
            fix=f"write it by cuts.to_file(...) with one of the endings {', '.join(_MANIFESTS)}",
        )
    return path


def _in_folder(folder: str) -> CutFiles:
    """List a Shar folder: `cuts.000000.jsonl.gz`, `recording.000000.tar`, ..."""
    found: dict[str, list[str]] = {}
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise SourceError(f"the folder cannot be read: {error.strerror}", where=folder) from error
    for name in names:
        field = name.partition(".")[0]
        if field and name.endswith(_DATA):
            found.setdefault(field, []).append(os.path.join(folder, name))
    cuts = found.pop(CUTS, None)
    if cuts is None:
        raise SourceError(
            "this is no Shar folder: it has no cuts.*.jsonl or cuts.*.jsonl.gz",
            where=folder,
            fix="give the folder that lhotse's SharWriter wrote, or the path of a manifest",
        )
    return _checked(cuts, found)


def _of_fields(files: Mapping[Any, Any]) -> CutFiles:
    shards: dict[str, list[str]] = {}
    for name, paths in files.items():
        given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
        shards[str(name)] = [os.path.abspath(path) for path in given]
        for path in shards[str(name)]:
            if not path.endswith(_DATA if name != CUTS else _MANIFESTS):
                raise ConfigError(
                    f"a shard of {name!r} has an ending that cannot be read at any place",
                    where=path,
                    fix=f"shards end in {', '.join(_DATA)}; pipes, URLs and compressed tars must be fetched first",
                )
    cuts = shards.pop(CUTS, None)
    if cuts is None:
        raise ConfigError("the dict of Shar fields has no 'cuts'", fix=did_you_mean(CUTS, map(str, files)))
    return _checked(cuts, shards)


def _checked(cuts: Sequence[str], fields: Mapping[str, Sequence[str]]) -> CutFiles:
    for name, paths in fields.items():
        if len(paths) != len(cuts):
            raise SourceError(
                f"the field {name!r} has {len(paths)} shards, and there are {len(cuts)} of cuts",
                where=os.path.dirname((paths or cuts)[0]),
                fix="complete the field, or give a dict of the fields to read",
            )
    return CutFiles(tuple(cuts), {name: tuple(paths) for name, paths in fields.items()})

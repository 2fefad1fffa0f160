"""A source of the images below a folder; the folder of each may be its class."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError, did_you_mean
from headrace.files import FileStamp
from headrace.index import CorpusIndex

from ..shared.codec import Codec, found_by
from ..shared.fields import Field, parse_field
from ..shared.folder import Listing, all_cases, folder_of, for_each, list_corpus_files
from ..shared.open_files import check_stamp
from ..shared.paths import Files, IndexOption
from ..shared.source import RecordSource, make_index
from .codec import EXTENSIONS, ImageCodec

INDEX_KIND = "image-folder/1"
SUFFIXES = tuple(f".{extension}" for extension in sorted(EXTENSIONS))
_FOLDER, _TAG = "folder", "tag"


@dataclass(frozen=True, slots=True)
class _Options:
    """How images become sequences.

    Attributes:
        root: The folder.
        image: How images become arrays.
        fields: Data key -> field of what the folder says of an image.
    """

    root: str
    image: ImageCodec
    fields: dict[str, Field]

    @property
    def codecs(self) -> dict[str, Codec]:
        """All of them, by data key."""
        return {"data": self.image, **self.fields}


class ImageFolderSource(RecordSource):
    """The images below a folder: key "data", `uint8[H, W, C]` without a time axis, and a key for each target.

    Needs `headrace[image]`. The tag is the path without the suffix; sequences come in the order of their tags. Headers
    are read once, when the index is built. What is done with modes, orientation and animations is in `ImageCodec`.

    Args:
        files: The folder, or a list of images or a pattern, which then come in that order.
        mode: "RGB", "RGBA", "L" (gray) or "I;16" (gray of 16 bits).
        size: (height, width) to which each image is resized; `None` leaves them as they are.
        targets: Data key -> field: "folder", the name of the folder that the image is in, or "tag"; or a dict, see
            `parse_field`. `None`: `{"classes": "folder"}` if each image is in a sub-folder, and else none.
        suffixes: Suffixes of images, in either case.
        index: `"auto"` keeps the index of a large folder in the cache folder and finds it there the next time, unless
            a file changed; `None` always reads all headers; a path opens the index that `source.index.save(path)`
            wrote.

    Raises:
        ConfigError: An option is wrong, or Pillow is not installed.
        SourceError: An image is truncated or damaged, or has the same tag as another; a link leads out of the folder;
            or the given index is not one of these files as they are now.
    """

    _options: _Options
    _changed_fix = "the folder changed since it was read: build the source again"

    def __init__(
        self,
        files: Files,
        *,
        mode: str = "RGB",
        size: Sequence[int] | None = None,
        targets: Mapping[str, str | Mapping[str, Any]] | None = None,
        suffixes: Sequence[str] = SUFFIXES,
        index: IndexOption = "auto",
    ) -> None:
        if isinstance(suffixes, str) or not all(isinstance(one, str) and one.startswith(".") for one in suffixes):
            raise ConfigError(f"suffixes={suffixes!r}", where="ImageFolderSource", fix='a list such as [".png"]')
        listing = list_corpus_files(files, all_cases(suffixes), "ImageFolderSource")
        if targets is None:
            have_folders = bool(listing.names) and all("/" in name for name in listing.names)
            targets = {"classes": _FOLDER} if have_folders else {}
        fields = {key: parse_field(key, target) for key, target in targets.items()}
        for key, field in fields.items():
            if key == "data":
                raise ConfigError('a target cannot be named "data": that is the image', where="ImageFolderSource")
            if field.name not in (_FOLDER, _TAG):
                fix = did_you_mean(field.name, (_FOLDER, _TAG))
                raise ConfigError(f"a folder has no field {field.name!r}", where=f"target {key!r}", fix=fix)
        options = _Options(listing.root, ImageCodec("images of the folder", mode, size), fields)
        kind = f"{INDEX_KIND} {json.dumps([[key, codec.identity] for key, codec in options.codecs.items()])}"
        self._open(options, listing, functools.partial(_gather, options, listing), index=index, kind=kind)

    def _prepare(self) -> None:
        for key, codec in self._options.codecs.items():
            codec.settle(self.specs[key], self.labels.get(key))
        self._suffixes: list[str] = self._index.meta["suffixes"]

    def _record(self, corpus_idx: int, data_keys: Sequence[str]) -> str:  # noqa: ARG002 - the tag says all
        return self._index.tags[corpus_idx]

    def _encode(self, record: str, corpus_idx: int, data_key: str, where: str) -> NDArray[Any]:
        options = self._options
        if data_key == "data":
            return options.image.encode(self._path(corpus_idx, record), where)
        field = options.fields[data_key]
        return field.encode(_values_of(record, field, where)[field.name], where)

    def _path(self, corpus_idx: int, tag: str) -> str:
        """Return the path of an image, which must be what it was."""
        index = self._index
        suffix, size, time = (int(index.locator(name)[corpus_idx]) for name in ("suffix", "size", "time"))
        if not 0 <= suffix < len(self._suffixes):
            raise index.damaged(f"it says that sequence {corpus_idx} has suffix {suffix} of {len(self._suffixes)}")
        path = os.path.join(self._options.root, tag + self._suffixes[suffix])
        check_stamp(FileStamp(path, size, time, digest=""))
        return path

    def _where(self, corpus_idx: int) -> str:
        return f"{self._options.root}, tag {self._index.tags[corpus_idx]!r}"


def _values_of(tag: str, field: Field, where: str) -> dict[str, str]:
    return {_TAG: tag} if field.name == _TAG else {_FOLDER: folder_of(tag, where)}


def _read_size(image: ImageCodec, path: str) -> tuple[int, int]:
    return image.read_size(path, path)


def _gather(options: _Options, listing: Listing) -> CorpusIndex:
    """Read the headers of all images, several at a time."""
    tags, endings = zip(*map(os.path.splitext, listing.names), strict=True) if listing.names else ((), ())
    twin = next((tag for before, tag in zip(sorted(tags), sorted(tags)[1:], strict=False) if before == tag), None)
    if twin is not None:
        raise SourceError(
            f"two images have the tag {twin!r}", where=listing.root, fix="choose by suffixes=, or remove one"
        )
    paths = [listing.path(number) for number in range(len(tags))]
    sizes = for_each(functools.partial(_read_size, options.image), paths)
    suffixes = sorted(set(endings))
    lengths: dict[str, list[int]] = {key: [] for key in options.codecs}
    for tag, size, where in zip(tags, sizes, paths, strict=True):
        options.image.learn_size(size, where)
        lengths["data"].append(1)
        for key, field in options.fields.items():
            lengths[key].append(field.scan(_values_of(tag, field, where)[field.name], where))
    for field in options.fields.values():
        field.end_scan()
    return make_index(
        **found_by(options.codecs),
        tags=tags,
        lengths=lengths,
        locators={
            "suffix": np.array([suffixes.index(ending) for ending in endings], np.int64),
            "size": np.array(listing.sizes, np.int64),
            "time": np.array(listing.times, np.int64),
        },
        suffixes=suffixes,
    )

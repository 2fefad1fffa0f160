"""Images: `ImageCodec` decodes them, wherever they are stored, by Pillow; `ImageFolderSource` reads a folder of them.

An image has no time axis: its array is `uint8[H, W, C]`. Decided here, for all formats: Pillow's `convert` makes the
pixels of the wanted mode, so gray and palette images become RGB, and transparency is dropped ("RGBA" keeps it); the
orientation that EXIF says is applied; of an animation the first picture counts; 16 bits a pixel are read with mode
"I;16" and refused with the others, which would clip them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import open_regular
from headrace.specs import DataSpec

from .shared.codec import Facts, FileCodec
from .shared.folder import list_corpus_files
from .shared.listed import FOLDER_FIELD, TAG_FIELD, Listed, ListedSource, entries_of, parse_targets
from .shared.paths import Files, IndexOption

EXTENSIONS = frozenset(("png", "jpg", "jpeg", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm"))
IMAGE_OPTIONS = ("mode", "size")
_CHANNELS = {"RGB": 3, "RGBA": 4, "L": 1, "I;16": 1}
MODES = tuple(_CHANNELS)
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # no EPS: it would start another program
_WIDE_MODES = ("I", "I;16", "I;16B", "I;16L", "F")
_ORIENTATION = 0x0112
_TURNED = (5, 6, 7, 8)  # orientations in which height and width change places


def import_pillow() -> ModuleType:
    """Return Pillow's module `PIL.Image`.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ConfigError(f"images need the package Pillow: {error}", fix="pip install 'headrace[image]'") from error


class ImageCodec(FileCodec):
    """Images as `uint8[H, W, C]`; `uint16[H, W, 1]` for mode "I;16".

    Args:
        what: What the images are called in messages.
        mode: "RGB", "RGBA", "L" (gray) or "I;16" (gray of 16 bits).
        size: (height, width) to which each is resized, bilinearly; `None`: as they are, and where they differ, height
            and width are free axes, which a transform has to make equal before they are batched.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(self, what: str, mode: Any = "RGB", size: Any = None) -> None:
        if mode not in _CHANNELS:
            raise ConfigError(f"mode is {mode!r}", where=what, fix=f"one of {', '.join(_CHANNELS)}")
        if size is not None:
            is_pair = isinstance(size, list | tuple) and len(size) == 2
            if not is_pair or not all(type(one) is int and 0 < one < 1 << 16 for one in size):
                raise ConfigError(f"size is {size!r}", where=what, fix="(height, width), such as (224, 224)")
        self._what, self.mode = what, str(mode)
        self.size: tuple[int, int] | None = None if size is None else (size[0], size[1])
        self._shape: tuple[int | None, ...] = (*(self.size or (None, None)), _CHANNELS[self.mode])

    @classmethod
    def parse(cls, what: str, options: Mapping[str, Any]) -> ImageCodec:
        """Return it from the options of a field."""
        return cls(what, options.get("mode", "RGB"), options.get("size"))

    @property
    def _dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint16 if self.mode == "I;16" else np.uint8)

    @property
    def spec(self) -> DataSpec:
        """Layout of the arrays."""
        return DataSpec(self._dtype.name, self._shape, dim=self._shape[-1], has_time=False)

    @property
    def identity(self) -> list[Any]:
        """Mode and size."""
        return [self.mode, self.size]

    def look(self, value: str | bytes | IO[bytes], where: str) -> tuple[int, int]:
        """Return height and width as they will be, from the header."""
        if self.size is not None:
            return self.size
        with _opened(value, where) as image:
            width, height = image.size
            return (width, height) if _orientation_of(image) in _TURNED else (height, width)

    def note_look(self, found: tuple[int, int], where: str, facts: Facts) -> int:
        """Note what `look` returned; return 1."""
        facts.setdefault(found, where)
        return 1

    def conclude(self, facts: Facts) -> None:
        """Free the axes that differ."""
        if self.size is None and not facts:
            raise ConfigError(f"there are no {self._what}, and so no shape", fix="check the path, or give size=")
        if self.size is None:
            sizes = [set(axis) for axis in zip(*facts, strict=True)]
            self._shape = (*(axis.pop() if len(axis) == 1 else None for axis in sizes), self._shape[-1])

    def settle(self, spec: DataSpec, labels: Sequence[str] | None, learnt: Any = None) -> None:  # noqa: ARG002
        """Take the layout."""
        self._shape = spec.shape

    def encode(self, value: str | bytes, where: str) -> NDArray[Any]:
        """Return the pixels of an image, `uint8[H, W, C]`; a path or the bytes of its file."""
        with _opened(value, where) as image:
            is_wide, wants_wide = image.mode in _WIDE_MODES, self.mode == "I;16"
            if is_wide != wants_wide or image.mode == "F":
                raise SourceError(
                    f"the image has the mode {image.mode!r}, which {self.mode!r} does not hold",
                    where=where,
                    fix='mode="I;16" reads images of 16 bits a pixel, and only those',
                )
            image.load()
            pixels = image if wants_wide else image.convert(self.mode)
            array = _upright(np.asarray(pixels), _orientation_of(image))
        if wants_wide and array.dtype != np.uint16:
            if array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 16:
                raise SourceError("the image has numbers beyond 16 bits", where=where, fix="store it as .npy")
            array = array.astype(np.uint16)
        if self.size is not None and array.shape[:2] != self.size:
            array = _resized(array, self.size)
        return np.array(array.reshape(*array.shape[:2], _CHANNELS[self.mode]), self._dtype, order="C")


@contextlib.contextmanager
def _opened(value: str | bytes | IO[bytes], where: str) -> Iterator[Any]:
    """Open an image, of which the header is read. What Pillow raises in the block becomes a `SourceError`."""
    pillow = import_pillow()
    with contextlib.ExitStack() as files:
        try:
            file: Any = io.BytesIO(value) if isinstance(value, bytes) else value
            if isinstance(value, str):
                file = files.enter_context(open_regular(value))
            yield pillow.open(file, formats=_FORMATS)
        except (SourceError, ConfigError):
            raise
        except Exception as error:
            is_unknown = isinstance(error, pillow.UnidentifiedImageError)  # which shows the object of the file
            reason = "its format is not known" if is_unknown else str(error) or "not enough memory"
            raise SourceError(
                f"the image cannot be read: {reason}",
                where=where,
                fix=f"it is truncated, damaged, too large for the memory, or none of {', '.join(_FORMATS)}: "
                "write it again, or leave it out",
            ) from error


def _orientation_of(image: Any) -> int:
    """Return the orientation that EXIF says, 1 to 8; of PNG only where it stands before the pixels.

    Damaged EXIF says nothing: so do other programs, and the pixels are whole.
    """
    orientation = 1
    if image.format != "PNG" or "exif" in image.info:  # else Pillow would decode all of it to look behind the pixels
        with contextlib.suppress(Exception):
            orientation = int(image.getexif().get(_ORIENTATION, 1))
    return orientation if 1 <= orientation <= 8 else 1


def _upright(array: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Return pixels as EXIF 2.3 says that they are seen: axes exchanged, then rows or columns reversed."""
    if orientation in _TURNED:
        array = array.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    return array[:, ::-1] if orientation in (2, 3, 6, 7) else array


def _resized(array: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    pillow = import_pillow()
    if array.dtype == np.uint16:  # which Pillow resizes only as 32 bits
        resized = pillow.fromarray(array.astype(np.int32)).resize(size[::-1], pillow.Resampling.BILINEAR)
        return np.asarray(resized).clip(0, (1 << 16) - 1).astype(np.uint16)
    return np.asarray(pillow.fromarray(np.ascontiguousarray(array)).resize(size[::-1], pillow.Resampling.BILINEAR))


SUFFIXES = tuple(f".{extension}" for extension in sorted(EXTENSIONS))


class ImageFolderSource(ListedSource):
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
        listing = list_corpus_files(files, suffixes, "ImageFolderSource")
        if targets is None:
            have_folders = bool(listing.names) and all("/" in name for name in listing.names)
            targets = {"classes": FOLDER_FIELD} if have_folders else {}
        image = ImageCodec("images of the folder", mode, size)
        listed = Listed(listing.root, listing.root, image, parse_targets(targets, (FOLDER_FIELD, TAG_FIELD)))
        self._open_listed(listed, listing, lambda: entries_of(listing, listed), index=index, kind="image-folder/4")

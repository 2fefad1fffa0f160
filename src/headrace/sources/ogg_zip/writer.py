"""`OggZipWriter`: recordings and texts in a zip archive that `OggZipSource` and RETURNN read."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files.utf8 import decode_utf8
from headrace.specs import DataSpec

from ..shared.data_types import as_array
from ..shared.writer import FileWriter

_FORMATS: dict[str, dict[str, str]] = {
    "wav": {"format": "WAV", "subtype": "FLOAT"},
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
}
_LAYOUT = {"data": DataSpec("float32", (1,), dim=1), "orth": DataSpec("uint8", sparse=True, dim=256)}


class OggZipWriter(FileWriter):
    """Writes one archive: key "data" as recordings, "orth" as texts. Needs `headrace[audio]`.

    Args:
        path: The file to make; it ends in `.zip`. Its folder must exist.
        specs: Only to be checked: the format holds samples, float32[T, 1] or float32[T], and UTF-8 bytes, uint8[T].
        labels: Accepted for "orth".
        overwrite: Whether an existing file may be replaced.
        sample_rate: Sample rate of the samples, in Hz.
        audio_format: `"wav"` keeps every sample as it is; `"flac"` rounds to 16 bits; `"ogg"` (Vorbis) is small.

    Raises:
        ConfigError: An option is wrong, the file exists, or `specs` has what the format cannot hold.
        SourceError: The folder is missing or cannot be written to.
    """

    _needs_all_labels = False

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        specs: Mapping[str, DataSpec] | None = None,
        labels: Mapping[str, Sequence[str]] | None = None,
        overwrite: bool = False,
        sample_rate: int,
        audio_format: Literal["wav", "flac", "ogg"] = "wav",
    ) -> None:
        super().__init__(path, specs=_LAYOUT, labels=labels, overwrite=overwrite)
        if audio_format not in _FORMATS or not self.path.endswith(".zip"):
            raise ConfigError(
                f"{os.path.basename(self.path)!r} in the format {audio_format!r}",
                where="OggZipWriter",
                fix=f"the path ends in .zip; audio_format is one of {', '.join(_FORMATS)}",
            )
        if isinstance(sample_rate, bool) or not isinstance(sample_rate, int) or sample_rate < 1:
            raise ConfigError(f"sample_rate is a number of Hz, not {sample_rate!r}", where="OggZipWriter")
        for key in (*(specs or {}), *(labels or {})):
            if key not in _LAYOUT:
                raise ConfigError(
                    f"an archive cannot hold {key!r}", where=self.path, fix=f"leave it out: it holds {list(_LAYOUT)}"
                )
        for key, spec in (specs or {}).items():
            shapes = ((), _LAYOUT[key].shape)
            if spec.dtype != _LAYOUT[key].dtype or spec.shape not in shapes or not spec.has_time:
                raise ConfigError(f"{key!r} cannot be {spec}", where=self.path, fix="give samples and UTF-8 bytes")
        self._sample_rate, self._format = sample_rate, audio_format
        self._name = os.path.basename(self.path).removesuffix(".zip")
        self._entries: list[str] = []
        self._open()

    def _begin(self) -> None:
        archive = zipfile.ZipFile(self._pend().temporary, "w", allowZip64=True)
        self._opened.callback(_close_whatever, archive)
        self._archive = archive

    def _as_stored(self, data_key: str, value: Any, where: str) -> NDArray[Any]:
        array = as_array(value, _LAYOUT.get(data_key), f"{where}, data key {data_key!r}")
        return array[:, None] if data_key == "data" and array.ndim == 1 else array

    def _put(self, tag: str, arrays: dict[str, NDArray[Any]], where: str) -> None:
        samples, text = arrays["data"], decode_utf8(arrays["orth"].tobytes(), where)
        content, file = self._encoded(samples, where), f"{len(self._entries):08d}.{self._format}"
        self._archive.writestr(zipfile.ZipInfo(f"{self._name}/{file}"), content)
        entry = {"text": text, "duration": len(samples) / self._sample_rate, "file": file, "seq_name": tag}
        self._entries.append(repr(entry))

    def _encoded(self, samples: NDArray[Any], where: str) -> bytes:
        if not len(samples) and self._format != "wav":
            raise SourceError(
                f"an empty recording cannot be stored as {self._format}", where=where, fix='give audio_format="wav"'
            )
        try:
            import soundfile
        except (ImportError, OSError) as error:
            raise ConfigError(
                f"writing audio needs the package soundfile: {error}", fix="pip install 'headrace[audio]'"
            ) from error
        file = io.BytesIO()
        try:
            soundfile.write(file, samples, self._sample_rate, **_FORMATS[self._format])
        except (RuntimeError, ValueError, TypeError) as error:
            raise SourceError(f"the samples cannot be stored as {self._format}: {error}", where=where) from error
        return file.getvalue()

    def _finish(self) -> None:
        text = "[\n" + "".join(f"{entry},\n" for entry in self._entries) + "]\n"
        self._archive.writestr(zipfile.ZipInfo(f"{self._name}.txt"), text, zipfile.ZIP_DEFLATED)
        self._archive.close()


def _close_whatever(archive: zipfile.ZipFile) -> None:
    """Close an aborted archive, in which a member may be half written."""
    with contextlib.suppress(OSError, ValueError):
        archive.close()

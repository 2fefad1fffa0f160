"""`OggZipWriter`: recordings and texts in a zip archive that `OggZipSource` and RETURNN read."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError, SourceError
from headrace.files import PendingFile
from headrace.specs import DataSpec

from .utf8 import decode_utf8
from .writer import Writer

_FORMATS: dict[str, dict[str, str]] = {
    "wav": {"format": "WAV", "subtype": "FLOAT"},
    "flac": {"format": "FLAC", "subtype": "PCM_16"},
    "ogg": {"format": "OGG", "subtype": "VORBIS"},
}
_KEYS = ("data", "orth")


class OggZipWriter(Writer):
    """Writes one archive: key "data" as recordings, "orth" as texts. Needs `headrace[audio]`.

    Args:
        path: The file to make; it ends in `.zip`. Its folder must exist.
        specs: Only to be checked: the format holds samples, float32[T, 1] or float32[T], and UTF-8 bytes, uint8[T].
        labels: Accepted for "orth".
        overwrite: Whether an existing file may be replaced.
        sample_rate: Of the samples, in Hz.
        audio_format: `"wav"` keeps every sample as it is; `"flac"` rounds to 16 bits; `"ogg"` (Vorbis) is small.

    Raises:
        ConfigError: An option is wrong, the file exists, or `specs` has what the format cannot hold.
        SourceError: The folder is missing or cannot be written to.
    """

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
        self.path = os.path.abspath(path)
        self._overwrite = overwrite
        if audio_format not in _FORMATS or not self.path.endswith(".zip"):
            raise ConfigError(
                f"{os.path.basename(self.path)!r} in the format {audio_format!r}",
                where="OggZipWriter",
                fix=f"the path ends in .zip; audio_format is one of {', '.join(_FORMATS)}",
            )
        if isinstance(sample_rate, bool) or not isinstance(sample_rate, int) or sample_rate < 1:
            raise ConfigError(f"sample_rate is a number of Hz, not {sample_rate!r}", where="OggZipWriter")
        for key in (*(specs or {}), *(labels or {})):
            if key not in _KEYS:
                raise ConfigError(
                    f"an archive cannot hold {key!r}", where=self.path, fix=f"leave it out: it holds {_KEYS}"
                )
        for key, spec in (specs or {}).items():
            dtype, shapes = ("float32", ((), (1,))) if key == "data" else ("uint8", ((),))
            if spec.dtype != dtype or spec.shape not in shapes or not spec.has_time:
                raise ConfigError(f"{key!r} cannot be {spec}", where=self.path, fix="give samples and UTF-8 bytes")
        self._check_target()
        self._sample_rate, self._format = sample_rate, audio_format
        self._name = os.path.basename(self.path).removesuffix(".zip")
        self._entries: list[str] = []
        self._pending = PendingFile(self.path)
        self._archive: zipfile.ZipFile | None = zipfile.ZipFile(self._pending.temporary, "w", allowZip64=True)

    @property
    def num_seqs(self) -> int:
        """Number of sequences appended so far."""
        return len(self._entries)

    def append(self, tag: str, data: Mapping[str, NDArray[Any]]) -> None:
        """Append one sequence. If it is refused, nothing of it is stored, and the next one may be appended.

        Args:
            tag: Its name. It may come again.
            data: "data": `float32[T, 1]` or `float32[T]`; "orth": `uint8[T]`, UTF-8.

        Raises:
            SourceError: It is not that. If the disk is full the writer is aborted, too.
            ConfigError: The writer is closed.
        """
        if self._archive is None:
            raise ConfigError("the writer is closed", where=self.path, fix="append before close()")
        where = f"{self.path}, sequence {tag!r}"
        if not isinstance(tag, str) or set(data) != set(_KEYS):
            raise SourceError(f"a sequence has {sorted(data)}, not {list(_KEYS)}", where=where, fix="give both")
        samples, letters = np.asarray(data["data"]), np.asarray(data["orth"])
        if samples.dtype != np.float32 or samples.shape not in ((len(samples),), (len(samples), 1)):
            raise SourceError(f"'data' is {samples.dtype}{list(samples.shape)}, not float32[T, 1]", where=where)
        if letters.dtype != np.uint8 or letters.ndim != 1:
            raise SourceError(f"'orth' is {letters.dtype}{list(letters.shape)}, not uint8[T]", where=where)
        text, content = decode_utf8(letters.tobytes(), where), self._encoded(samples, where)
        file = f"{len(self._entries):08d}.{self._format}"
        try:
            self._archive.writestr(zipfile.ZipInfo(f"{self._name}/{file}"), content)
        except BaseException as error:  # an interrupt, too, leaves half a member
            self.abort()
            if isinstance(error, OSError):
                raise self._write_error(error) from error
            raise
        entry = {"text": text, "duration": len(samples) / self._sample_rate, "file": file, "seq_name": tag}
        self._entries.append(repr(entry))

    def _encoded(self, samples: NDArray[np.float32], where: str) -> bytes:
        if not len(samples) and self._format != "wav":
            raise SourceError(
                f"an empty recording cannot be stored as {self._format}", where=where, fix='audio_format="wav"'
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

    def close(self) -> None:
        """Write the text and give the file its name. Does nothing after `close` or `abort`.

        Raises:
            SourceError: The disk is full or refuses; nothing is left.
            ConfigError: The file has come into being meanwhile; nothing is left of ours.
        """
        if self._archive is None:
            return
        try:
            self._check_target()
            text = "[\n" + "".join(f"{entry},\n" for entry in self._entries) + "]\n"
            self._archive.writestr(zipfile.ZipInfo(f"{self._name}.txt"), text, zipfile.ZIP_DEFLATED)
            self._archive.close()
            self._archive = None
            self._pending.commit()
        except OSError as error:
            raise self._write_error(error) from error
        finally:
            self.abort()

    def abort(self) -> None:
        """Give up and leave nothing. Does nothing after `close` or `abort`."""
        archive, self._archive = self._archive, None
        if archive is not None:
            with contextlib.suppress(OSError, ValueError):  # a full disk; nobody wants it any more
                archive.close()
        self._pending.abort()

    def _check_target(self) -> None:
        if os.path.lexists(self.path) and not self._overwrite:
            raise ConfigError("the file exists", where=self.path, fix="give another path, or overwrite=True")

    def _write_error(self, error: OSError) -> SourceError:
        return SourceError(
            f"cannot write: {error.strerror or error}", where=self.path, fix="make room, or write to another folder"
        )

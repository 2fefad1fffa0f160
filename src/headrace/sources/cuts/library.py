"""lhotse itself, imported when it is first needed, with its errors and the lengths of its recordings checked."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError, HeadraceError, SourceError

if TYPE_CHECKING:
    from types import ModuleType


@functools.cache
def import_lhotse() -> ModuleType:
    """Import lhotse, without the warnings of what it imports.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import lhotse
            import lhotse.array
            import lhotse.serialization
            import lhotse.shar.utils
    except ImportError as error:
        raise ConfigError("cuts are read by lhotse", fix="pip install 'headrace[lhotse]'") from error
    return lhotse  # type: ignore[no-any-return]


@contextmanager
def lhotse_errors(doing: str, where: str, fix: str | None = None) -> Iterator[None]:
    """Turn any error of lhotse, or a library below it, into a `SourceError`; our own errors gain the location."""
    try:
        yield
    except HeadraceError as error:
        error.where = error.where or where
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:500]
        raise SourceError(f"lhotse cannot {doing}: {type(error).__name__}: {reason}", where=where, fix=fix) from error


# Formats in which any sample can be found exactly: ending of the name -> first bytes.
_EXACT = {".wav": b"RIFF", ".flac": b"fLaC"}
_MIN_TOLERANCE = 0.001  # seconds: lhotse compares numbers of seconds, which are not exact
_TOLERANCE = "_LHOTSE_AUDIO_DURATION_MISMATCH_TOLERANCE"


@contextmanager
def strict_lengths(lhotse: ModuleType, cut: Any, tolerance: float) -> Iterator[None]:
    """Have lhotse refuse, in the block, a recording that is shorter than its manifest says.

    lhotse makes up for as much as half a second, by samples in reverse, so that truncated recordings pass. That is left
    as it is where a recording is transformed, as the length of a result is not known to the sample, and where the user
    has set lhotse's own tolerance.

    Args:
        lhotse: The package.
        cut: Whose recordings are read.
        tolerance: Seconds that they may be short.
    """
    module = lhotse.audio.utils
    usual = getattr(module, _TOLERANCE, None)
    is_default = usual is not None and usual == getattr(module, f"_DEFAULT{_TOLERANCE}", None)
    if not is_default or any(recording.transforms for recording in recordings_of(cut)):
        yield
        return
    setattr(module, _TOLERANCE, max(tolerance, _MIN_TOLERANCE))
    try:
        yield
    finally:
        setattr(module, _TOLERANCE, usual)


def recordings_of(cut: Any) -> list[Any]:
    """Return all recordings that are heard in a cut, those of its tracks if it is mixed."""
    parts = [track.cut for track in cut.tracks] if hasattr(cut, "tracks") else [cut]
    found = [getattr(part, "recording", None) for part in parts]
    return [recording for recording in found if recording is not None]


def part_of(cut: Any, start: int, end: int, sample_rate: int) -> Any | None:
    """Return a cut of the samples start..end, or None where reading it might not give exactly those."""
    recording = getattr(cut, "recording", None)  # a mixed cut has none
    if hasattr(cut, "tracks") or recording is None or recording.transforms or len(recording.sources) != 1:
        return None
    source = recording.sources[0]
    if source.type == "memory":
        is_exact = bytes(source.source[:4]) in _EXACT.values()
    else:
        is_exact = source.type == "file" and os.path.splitext(str(source.source))[1].lower() in _EXACT
    if not is_exact or start >= end:
        return None
    return cut.truncate(offset=start / sample_rate, duration=(end - start) / sample_rate, preserve_id=True)

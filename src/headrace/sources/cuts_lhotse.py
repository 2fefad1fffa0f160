"""lhotse itself: imported when it is first needed, and its errors with a place."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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
    """Turn whatever lhotse, or a library below it, raises in the block into a `SourceError`; ours get the place."""
    try:
        yield
    except HeadraceError as error:
        error.where = error.where or where
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:500]
        raise SourceError(f"lhotse cannot {doing}: {type(error).__name__}: {reason}", where=where, fix=fix) from error

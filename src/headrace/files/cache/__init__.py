"""Copies of files on the local disk: `FileCache`, and `CachedFile`, which marks a file to be read through it.

It decides which copies are made, kept and removed. It knows nothing of how bytes are fetched, nor of datasets. Read
`cache.py` first.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .cache import CacheCounters, CleanupResult, FileCache
    from .entry import CachedFile

__all__ = ["CacheCounters", "CachedFile", "CleanupResult", "FileCache"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "cache": ("CacheCounters", "CleanupResult", "FileCache"),
        "entry": ("CachedFile",),
    },
)

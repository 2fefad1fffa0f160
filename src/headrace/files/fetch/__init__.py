"""Fetches bytes into a partial file: local and network disks, web servers, object stores.

It decides which range is requested next, and what is tried again. It knows nothing of the cache. Read `fetch.py` first,
`ranges.py` for its loop.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .fetch import discard_part, fetch_to, is_url, open_url, stat_source
    from .options import FetchOptions, SourceChangedError, SourceStat

__all__ = [
    "FetchOptions",
    "SourceChangedError",
    "SourceStat",
    "discard_part",
    "fetch_to",
    "is_url",
    "open_url",
    "stat_source",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "fetch": ("discard_part", "fetch_to", "is_url", "open_url", "stat_source"),
        "options": ("FetchOptions", "SourceChangedError", "SourceStat"),
    },
)

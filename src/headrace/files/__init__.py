"""Files: safe writing, stamps, lists and trees of files, their distribution over shards, the cache, object stores.

This room decides how a file comes into being (whole or not at all), whether it has changed, and which files go to which
sub-epoch and shard. It never interprets sequences and executes nothing that it reads. Read `atomic.py` first,
`plan.py` for who gets which files, and `cache/cache.py` for copies on the local disk.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .atomic import PendingFile, atomic_write
    from .cache.cache import FileCache
    from .cache.entry import CachedFile
    from .cache.options import FileCacheOptions
    from .fetch import FetchOptions
    from .kept import hold_in_use, kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder
    from .lists.tag_list import read_seq_lens, read_tag_list
    from .locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular, resolve_inside, user_cache_dir
    from .stamps import FileStamp

__all__ = [
    "TOO_MANY_OPEN",
    "TOO_MANY_OPEN_FIX",
    "CachedFile",
    "FetchOptions",
    "FileCache",
    "FileCacheOptions",
    "FileStamp",
    "PendingFile",
    "atomic_write",
    "hold_in_use",
    "kept_folder",
    "kept_path",
    "note_use",
    "open_regular",
    "read_seq_lens",
    "read_tag_list",
    "remove_unused",
    "resolve_inside",
    "user_cache_dir",
    "warn_once_of_folder",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "atomic": ("PendingFile", "atomic_write"),
        "cache.cache": ("FileCache",),
        "cache.entry": ("CachedFile",),
        "cache.options": ("FileCacheOptions",),
        "fetch": ("FetchOptions",),
        "kept": ("hold_in_use", "kept_folder", "kept_path", "note_use", "remove_unused", "warn_once_of_folder"),
        "lists.tag_list": ("read_seq_lens", "read_tag_list"),
        "locations": ("TOO_MANY_OPEN", "TOO_MANY_OPEN_FIX", "open_regular", "resolve_inside", "user_cache_dir"),
        "stamps": ("FileStamp",),
    },
)

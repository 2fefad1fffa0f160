"""Files: safe writing, stamps, lists and trees of files, their distribution over shards, the cache, object stores.

This room decides how a file comes into being (whole or not at all), whether it has changed, and which files go to which
sub-epoch and shard. It never interprets sequences and executes nothing that it reads. Read `atomic/pending.py` first,
`plan.py` for who gets which files, and `cache/cache.py` for copies on the local disk.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .atomic.pending import PendingFile, atomic_path, atomic_write
    from .cache.cache import CachedFile, FileCache
    from .cache.options import FileCacheOptions
    from .kept import KeepLimit, hold_in_use, kept_folder, kept_path, note_use, remove_unused, warn_once_of_folder
    from .lists.file_list import Files, read_file_list
    from .lists.sizes import FileTable
    from .lists.tag_list import read_seq_lens, read_tag_list
    from .lists.tree import FileTree, map_leaves, tree_key, tree_leaves
    from .locations import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, open_regular, resolve_inside, user_cache_dir
    from .plan import FilePlan, distribute_in_order, distribute_largest_first
    from .stamps import FileStamp

__all__ = [
    "TOO_MANY_OPEN",
    "TOO_MANY_OPEN_FIX",
    "CachedFile",
    "FileCache",
    "FileCacheOptions",
    "FilePlan",
    "FileStamp",
    "FileTable",
    "FileTree",
    "Files",
    "KeepLimit",
    "PendingFile",
    "atomic_path",
    "atomic_write",
    "distribute_in_order",
    "distribute_largest_first",
    "hold_in_use",
    "kept_folder",
    "kept_path",
    "map_leaves",
    "note_use",
    "open_regular",
    "read_file_list",
    "read_seq_lens",
    "read_tag_list",
    "remove_unused",
    "resolve_inside",
    "tree_key",
    "tree_leaves",
    "user_cache_dir",
    "warn_once_of_folder",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "atomic.pending": ("PendingFile", "atomic_path", "atomic_write"),
        "cache.cache": ("CachedFile", "FileCache"),
        "cache.options": ("FileCacheOptions",),
        "plan": ("FilePlan", "distribute_in_order", "distribute_largest_first"),
        "kept": (
            "KeepLimit",
            "hold_in_use",
            "note_use",
            "remove_unused",
            "warn_once_of_folder",
            "kept_folder",
            "kept_path",
        ),
        "lists.file_list": ("Files", "read_file_list"),
        "lists.tag_list": ("read_seq_lens", "read_tag_list"),
        "locations": ("resolve_inside", "user_cache_dir", "TOO_MANY_OPEN", "TOO_MANY_OPEN_FIX", "open_regular"),
        "lists.sizes": ("FileTable",),
        "stamps": ("FileStamp",),
        "lists.tree": ("FileTree", "map_leaves", "tree_key", "tree_leaves"),
    },
)

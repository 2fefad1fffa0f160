"""Where bytes are: safe writing, stamps of files, small lists, paths that stay inside their root.

This room decides how a file comes into being (whole or not at all) and whether it is still the file it was. It never
interprets sequences and executes nothing that it reads. Read `atomic.py` first.
"""

from .atomic import PendingFile, atomic_path, atomic_write
from .lists import read_seq_lens, read_tag_list
from .places import resolve_inside, user_cache_dir
from .stamps import TOO_MANY_OPEN, TOO_MANY_OPEN_FIX, FileStamp

__all__ = [
    "TOO_MANY_OPEN",
    "TOO_MANY_OPEN_FIX",
    "FileStamp",
    "PendingFile",
    "atomic_path",
    "atomic_write",
    "read_seq_lens",
    "read_tag_list",
    "resolve_inside",
    "user_cache_dir",
]

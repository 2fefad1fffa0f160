"""Storage formats: each source gives sequence i of a corpus, by data key, in any order.

This room decides how a format is read, and how it is written. It never knows epochs, orders, batches or processes.
Read `base.py` first, then `hdf.py` as the fullest example.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .audio import AudioSource
    from .base import Source
    from .hdf import HDFSource
    from .hdf_write import HDFWriter
    from .log_mel import LogMel
    from .mapped import SORT_LENGTHS, MapSource
    from .memory import MemorySource
    from .rows import fill_rows
    from .vocabulary import Vocabulary
    from .writer import Writer

__all__ = [
    "SORT_LENGTHS",
    "AudioSource",
    "HDFSource",
    "HDFWriter",
    "LogMel",
    "MapSource",
    "MemorySource",
    "Source",
    "Vocabulary",
    "Writer",
    "fill_rows",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "audio": ("AudioSource",),
        "base": ("Source",),
        "hdf": ("HDFSource",),
        "hdf_write": ("HDFWriter",),
        "log_mel": ("LogMel",),
        "mapped": ("SORT_LENGTHS", "MapSource"),
        "memory": ("MemorySource",),
        "rows": ("fill_rows",),
        "vocabulary": ("Vocabulary",),
        "writer": ("Writer",),
    },
)

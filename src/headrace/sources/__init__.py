"""Storage formats: each source gives sequence i of a corpus, by data key, in any order.

This room decides how a format is read, and how it is written. It never knows epochs, orders, batches or processes.
Read `base.py` first, then `hdf.py` as the fullest example.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .arrow import ArrowSource
    from .arrow_write import ArrowWriter
    from .audio import AudioSource
    from .audio_folder import AudioFolderSource
    from .base import Source
    from .configs import init_source, open_source
    from .cuts import CutSource
    from .hdf import HDFSource
    from .hdf_write import HDFWriter
    from .hugging_face import HuggingFaceSource
    from .jsonl import JsonlSource
    from .jsonl_write import JsonlWriter
    from .log_mel import LogMel
    from .mapped import SORT_LENGTHS, MapSource
    from .memory import MemorySource
    from .numpy_folder import NumpyFolderSource
    from .numpy_folder_write import NumpyFolderWriter
    from .ogg_zip import OggZipSource
    from .ogg_zip_write import OggZipWriter
    from .parquet import ParquetSource
    from .parquet_write import ParquetWriter
    from .rows import fill_rows
    from .safetensors_files import SafetensorsSource
    from .safetensors_write import SafetensorsWriter
    from .tar import TarSource
    from .tar_write import TarWriter
    from .text import TextSource
    from .token_write import TokenWriter
    from .tokens import TokenSource
    from .vocabulary import Vocabulary, init_vocabulary
    from .writer import Writer

__all__ = [
    "SORT_LENGTHS",
    "ArrowSource",
    "ArrowWriter",
    "AudioFolderSource",
    "AudioSource",
    "CutSource",
    "HDFSource",
    "HDFWriter",
    "HuggingFaceSource",
    "JsonlSource",
    "JsonlWriter",
    "LogMel",
    "MapSource",
    "MemorySource",
    "NumpyFolderSource",
    "NumpyFolderWriter",
    "OggZipSource",
    "OggZipWriter",
    "ParquetSource",
    "ParquetWriter",
    "SafetensorsSource",
    "SafetensorsWriter",
    "Source",
    "TarSource",
    "TarWriter",
    "TextSource",
    "TokenSource",
    "TokenWriter",
    "Vocabulary",
    "Writer",
    "fill_rows",
    "init_source",
    "init_vocabulary",
    "open_source",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "arrow": ("ArrowSource",),
        "arrow_write": ("ArrowWriter",),
        "audio": ("AudioSource",),
        "audio_folder": ("AudioFolderSource",),
        "base": ("Source",),
        "configs": ("init_source", "open_source"),
        "cuts": ("CutSource",),
        "hdf": ("HDFSource",),
        "hdf_write": ("HDFWriter",),
        "hugging_face": ("HuggingFaceSource",),
        "jsonl": ("JsonlSource",),
        "jsonl_write": ("JsonlWriter",),
        "log_mel": ("LogMel",),
        "mapped": ("SORT_LENGTHS", "MapSource"),
        "memory": ("MemorySource",),
        "numpy_folder": ("NumpyFolderSource",),
        "numpy_folder_write": ("NumpyFolderWriter",),
        "ogg_zip": ("OggZipSource",),
        "ogg_zip_write": ("OggZipWriter",),
        "parquet": ("ParquetSource",),
        "parquet_write": ("ParquetWriter",),
        "rows": ("fill_rows",),
        "safetensors_files": ("SafetensorsSource",),
        "safetensors_write": ("SafetensorsWriter",),
        "tar": ("TarSource",),
        "tar_write": ("TarWriter",),
        "text": ("TextSource",),
        "token_write": ("TokenWriter",),
        "tokens": ("TokenSource",),
        "vocabulary": ("Vocabulary", "init_vocabulary"),
        "writer": ("Writer",),
    },
)

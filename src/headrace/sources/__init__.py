"""Storage formats: each source gives sequence i of a corpus, by data key, in any order.

This room decides how a format is read, and how it is written. It never knows epochs, orders, batches or processes.
Read `base.py` first, then `shared/source.py` and `shared/records.py` for what formats have in common, and `formats.py`
for which there are.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from headrace.features.log_mel import LogMel
    from headrace.vocabularies.base import Vocabulary, init_vocabulary

    from .audio.folder import AudioFolderSource
    from .audio.source import AudioSource, AudioTableSource
    from .base import SORT_LENGTHS, Source, fill_rows
    from .hdf.source import HDFSource
    from .hdf.writer import HDFWriter
    from .images import ImageFolderSource
    from .lines.delimited import CsvSource
    from .lines.jsonl import JsonlSource
    from .lines.text import TextSource
    from .mapped import MapSource
    from .memory import MemorySource
    from .ogg_zip.source import OggZipSource
    from .registry import init_source, open_source
    from .shared.records import RecordFormat, Records
    from .shared.writer import Writer
    from .tables.hugging_face import HuggingFaceSource
    from .tables.source import ArrowSource, ParquetSource
    from .tables.writer import ArrowWriter, ParquetWriter
    from .tar.source import TarSource
    from .tar.writer import TarWriter
    from .tokens.source import TokenSource
    from .tokens.writer import TokenWriter

__all__ = [
    "SORT_LENGTHS",
    "ArrowSource",
    "ArrowWriter",
    "AudioFolderSource",
    "AudioSource",
    "AudioTableSource",
    "CsvSource",
    "HDFSource",
    "HDFWriter",
    "HuggingFaceSource",
    "ImageFolderSource",
    "JsonlSource",
    "LogMel",
    "MapSource",
    "MemorySource",
    "OggZipSource",
    "ParquetSource",
    "ParquetWriter",
    "RecordFormat",
    "Records",
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
        "tables.source": ("ArrowSource", "ParquetSource"),
        "tables.writer": ("ArrowWriter", "ParquetWriter"),
        "audio.source": ("AudioSource", "AudioTableSource"),
        "audio.folder": ("AudioFolderSource",),
        "base": ("SORT_LENGTHS", "Source", "fill_rows"),
        "registry": ("init_source", "open_source"),
        "hdf.source": ("HDFSource",),
        "hdf.writer": ("HDFWriter",),
        "tables.hugging_face": ("HuggingFaceSource",),
        "images": ("ImageFolderSource",),
        "lines.delimited": ("CsvSource",),
        "lines.jsonl": ("JsonlSource",),
        "headrace.features.log_mel": ("LogMel",),
        "mapped": ("MapSource",),
        "memory": ("MemorySource",),
        "ogg_zip.source": ("OggZipSource",),
        "tar.source": ("TarSource",),
        "tar.writer": ("TarWriter",),
        "lines.text": ("TextSource",),
        "tokens.writer": ("TokenWriter",),
        "tokens.source": ("TokenSource",),
        "headrace.vocabularies.base": ("Vocabulary", "init_vocabulary"),
        "shared.records": ("RecordFormat", "Records"),
        "shared.writer": ("Writer",),
    },
)

"""The built-in formats: an entry for each, in the order of detection."""

from __future__ import annotations

from headrace.files.packed import PACKED_SUFFIXES

from .entry import Format, Head

_ARROW_STREAM = b"\xff\xff\xff\xff"
_KIND_SCHEMA = 1  # in a message of Arrow: version, kind, what it is, in the order of its fields
_SCHEMA_FIELD = 2


def _also_packed(*suffixes: str) -> tuple[str, ...]:
    return tuple(suffix + packed for packed in ("", *PACKED_SUFFIXES) for suffix in suffixes)


_TABLE_SUFFIXES = _also_packed(".csv", ".tsv")
_LINE_SUFFIXES = _also_packed(".jsonl", ".json", ".ndjson")


def _begins_arrow_stream(head: Head) -> bool:
    """Tell whether a file begins as a stream of Arrow does. Its mark alone says little: tokens may be 65535, 65535.

    After the mark come the size of a message, a multiple of 8, and the message, a table of FlatBuffers: it begins with
    the offset of its root, which begins with the offset of a list of fields, the second of which says "schema".
    """
    data = head.data
    size, root = (int.from_bytes(data[start : start + 4], "little") for start in (4, 8))
    if not data.startswith(_ARROW_STREAM) or size % 8 or not 8 <= root < size <= head.num_bytes - 8:
        return False
    table = 8 + root
    vtable = table - int.from_bytes(data[table : table + 4], "little", signed=True)
    num_fields = int.from_bytes(data[vtable : vtable + 2], "little") // 2 - 2 if 8 <= vtable <= len(data) - 8 else 0
    if num_fields < _SCHEMA_FIELD + 1 or vtable + 4 + 2 * num_fields > len(data):
        return False
    kind = table + int.from_bytes(data[vtable + 6 : vtable + 8], "little")
    return data[kind : kind + 1] == bytes([_KIND_SCHEMA])


def _is_lines(head: Head) -> bool:
    return head.path.lower().endswith(_LINE_SUFFIXES)


def _is_other_lines(head: Head) -> bool:
    if not _is_lines(head):
        return False
    if not head.data or head.begins_with_long_object:  # an empty file may be anything; among others it changes nothing
        return True
    return head.first_object is not None and "audio" not in head.first_object


def _is_manifest(head: Head) -> bool:
    """Tell whether a file lists recordings; other JSON lines, too: the source says best what is wrong with a line."""
    return _is_lines(head) or (head.path.lower().endswith(_TABLE_SUFFIXES) and "audio" in head.first_fields)


def _at(module: str) -> str:
    return f"{__package__}.{module}"


BUILT_IN = (
    Format(
        "hdf",
        "HDF5",
        _at("hdf.source:HDFSource"),
        _at("hdf.writer:HDFWriter"),
        (".hdf", ".hdf5", ".h5"),
        magic=((0, b"\x89HDF\r\n\x1a\n"),),
        docs="[HDF5](hdf.md), `.hdf`",
        suits="features and alignments; RETURNN reads it too",
    ),
    Format(
        "tar",
        "tar",
        _at("tar.source:TarSource"),
        _at("tar.writer:TarWriter"),
        (".tar", ".tar.gz", ".tgz"),  # compressed ones are refused there, with the way out
        magic=((257, b"ustar"),),
        unique_tags=True,
        docs="[tar](tar.md), `.tar`",
        suits="WebDataset's shards, object stores",
    ),
    Format(
        "parquet",
        "Parquet",
        _at("tables.parquet:ParquetSource"),
        _at("tables.parquet:ParquetWriter"),
        (".parquet",),
        magic=((0, b"PAR1"),),
        docs="[Parquet](tables.md), `.parquet`",
        suits="tables, small files",
    ),
    Format(
        "arrow",
        "Arrow",
        _at("tables.arrow:ArrowSource"),
        _at("tables.arrow:ArrowWriter"),
        (".arrow", ".feather"),
        magic=((0, b"ARROW1"),),
        recognizes=_begins_arrow_stream,
        docs="[Arrow](tables.md), `.arrow`, `.feather`",
        suits="tables, random access",
    ),
    Format(
        "huggingface",
        "Hugging Face",
        _at("tables.hugging_face:HuggingFaceSource"),
        member="state.json",  # beside data-*-of-*.arrow, as `save_to_disk` leaves it
        takes_many=False,
        takes_folder=True,
        docs="`save_to_disk` of [Hugging Face](tables.md)",
        suits="their datasets",
    ),
    Format(
        "jsonl",
        "JSON lines",
        _at("lines.jsonl:JsonlSource"),
        suffixes=_also_packed(".jsonl", ".ndjson"),
        recognizes=_is_other_lines,
        docs="[JSON lines](text.md), `.jsonl`",
        suits="texts and a few numbers",
    ),
    Format(
        "manifest",
        "manifest",
        _at("audio.source:AudioSource"),
        recognizes=_is_manifest,
        takes_many=False,
        docs="a [manifest](../reference/datasets.md#recordings) of recordings, `.jsonl`, `.csv`, `.tsv`",
        suits="speech, with labels",
    ),
    Format(
        "csv",
        "CSV",
        _at("lines.delimited:CsvSource"),
        suffixes=_TABLE_SUFFIXES,
        is_last=True,
        docs="[CSV and TSV](text.md#csv-and-tsv), `.csv`, `.tsv`",
        suits="tables from elsewhere",
    ),
    Format(
        "tokens",
        "tokens",
        _at("tokens.source:TokenSource"),
        _at("tokens.writer:TokenWriter"),
        (".bin",),
        magic=((0, b"MMIDIDX\x00\x00"),),  # of an .idx; a lone .idx of another program says nothing of tokens
        defaults={"by": "document"},
        unless="block_length",
        key_option="data_key",
        beside=(".idx", ".tags.txt", ".specs.json"),
        docs="[tokens](text.md), `.bin`",
        suits="language models",
    ),
    Format(
        "text",
        "text",
        _at("lines.text:TextSource"),
        suffixes=_also_packed(".txt"),
        is_last=True,
        docs="[text](text.md), `.txt`",
        suits="lines",
    ),
    Format(
        "audio",
        "audio folder",
        _at("audio.folder:AudioFolderSource"),
        suffixes=(".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff"),
        magic=((0, b"fLaC"), (0, b"OggS")),
        takes_folder=True,
        takes_many=False,
        in_list=True,
        named_by_paths=True,
        docs="a [folder](folders.md) of recordings",
        suits="speech",
    ),
    Format(
        "images",
        "image folder",
        _at("images.folder:ImageFolderSource"),
        suffixes=(".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"),
        takes_folder=True,
        takes_many=False,
        in_list=True,
        named_by_paths=True,
        is_last=True,
        docs="a [folder](folders.md#images) of images",
        suits="images, with classes",
    ),
    Format(
        "ogg_zip",
        "OggZip",
        _at("ogg_zip.source:OggZipSource"),
        suffixes=(".zip",),
        takes_folder=True,
        defaults={"audio": {"features": "raw", "peak_normalization": False}},
        docs="[OggZip](folders.md), `.zip`",
        suits="RETURNN's archives",
    ),
)

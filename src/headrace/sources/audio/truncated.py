"""Whether a recording is truncated, by what its header says: libsndfile reads it as a shorter one, without a word.

Layouts: WAV (RIFF and RIFX), RF64 (EBU Tech 3306), Wave64, AIFF and AIFF-C, CAF, AU, NIST SPHERE, and Ogg (RFC 3533).
"""

from __future__ import annotations

import os
from typing import IO, Literal, NamedTuple

_ByteOrder = Literal["little", "big"]


class _Chunked(NamedTuple):
    """A file that is a row of chunks: each has a name, its size, and content."""

    start: int  # of the first chunk
    order: _ByteOrder
    name_bytes: int = 4
    size_bytes: int = 4
    multiple: int = 2  # chunks begin at multiples of it
    counts_head: bool = False  # whether the size of a chunk is that of name and size as well


_WAVE64_FORM = b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00"
_WAVE64 = _Chunked(40, "little", name_bytes=16, size_bytes=8, multiple=8, counts_head=True)
_CAF = _Chunked(8, "big", size_bytes=8, multiple=1)
_FORMS = {  # form and kind
    (b"RIFF", b"WAVE"): _Chunked(12, "little"),
    (b"RF64", b"WAVE"): _Chunked(12, "little"),
    (b"RIFX", b"WAVE"): _Chunked(12, "big"),
    (b"FORM", b"AIFF"): _Chunked(12, "big"),
    (b"FORM", b"AIFC"): _Chunked(12, "big"),
}
_SAMPLES = (b"data", b"SSND")  # names of chunks
_LONG_SIZES = b"ds64"  # of RF64: 8 bytes for the size of the file, and 8 for that of the samples, come first
_MAX_CHUNKS = 1000  # looked at before the samples; usual are one to five
# Sizes from here on stand for "not known", by their number of bytes: 0x7FFFF000 (SoX), 0xFFFFFFFF (FFmpeg), ...
_UNKNOWN = {4: 0x7FF00000, 8: 1 << 63}

_AU_FORMS: dict[bytes, _ByteOrder] = {b".snd": "big", b"dns.": "little"}
_AU_HEAD_BYTES = 12  # up to the size of the samples
_SPHERE_FORM = b"NIST_1A\n"
_MAX_SPHERE_HEAD_BYTES = 1 << 20
_SPHERE_CODINGS = frozenset(("pcm", "ulaw", "mu-law", "alaw"))  # as many bytes as the header says, not compressed

_OGG_FORM = b"OggS"
_OGG_HEAD_BYTES = 27  # of a page, before its table of segments
_MAX_OGG_PAGE_BYTES = _OGG_HEAD_BYTES + 255 + 255 * 255
_OGG_END_OF_STREAM = 4  # a flag of a page


def what_is_missing(file: IO[bytes]) -> str | None:
    """Say what is missing at the end of a recording; `None` if it is whole, or its header does not tell.

    The last page of an Ogg file says that its stream ends there. Files of other formats than those above pass, and so
    do those of which the length was not known when their header was written (to a pipe, for example), for which
    programs write a length of almost 2 or 4 GiB, of -1, or 0.

    Args:
        file: Can seek; its position does not matter.

    Raises:
        OSError: It cannot be read.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    form = file.read(16)
    if form[:4] == _OGG_FORM:
        file.seek(max(size - _MAX_OGG_PAGE_BYTES, 0))
        return _what_ogg_lacks(file.read(_MAX_OGG_PAGE_BYTES))
    chunked = _WAVE64 if form == _WAVE64_FORM else _CAF if form[:4] == b"caff" else _FORMS.get((form[:4], form[8:12]))
    if chunked is not None:
        return _what_chunks_lack(file, chunked, size)
    end = None
    if form[:4] in _AU_FORMS and len(form) >= _AU_HEAD_BYTES:
        end = _end_of_au(form)
    elif form.startswith(_SPHERE_FORM):
        end = _end_of_sphere(file)
    return _what_is_behind(end, size)


def _what_is_behind(end: int | None, size: int) -> str | None:
    """Return a text if the samples end after the end of the file."""
    if end is None or end <= size:
        return None
    return f"it has {size} bytes, and its header says that the samples end at byte {end}"


def _what_chunks_lack(file: IO[bytes], chunked: _Chunked, size: int) -> str | None:
    """Say what is missing of the chunks of a file up to its samples.

    Args:
        file: The open file.
        chunked: The layout of the file.
        size: Size of the file, in bytes.
    """
    head_bytes, long_size = chunked.name_bytes + chunked.size_bytes, None
    start = chunked.start
    for _ in range(_MAX_CHUNKS):
        file.seek(start)
        head = file.read(head_bytes)
        if not head:
            break
        if len(head) < head_bytes:
            return "it ends in the header of a chunk, before its samples"
        name, num_bytes = head[:4], int.from_bytes(head[chunked.name_bytes :], chunked.order)
        if chunked.counts_head:
            num_bytes = max(num_bytes - head_bytes, 0)
        if name == _LONG_SIZES:
            long_size = int.from_bytes(file.read(16)[8:], chunked.order)
        if name in _SAMPLES:
            limit = _UNKNOWN[chunked.size_bytes]
            if num_bytes >= limit and long_size is not None:
                num_bytes, limit = long_size, _UNKNOWN[8]
            return _what_is_behind(start + head_bytes + num_bytes, size) if num_bytes < limit else None
        end = start + head_bytes + num_bytes
        if end >= size:  # also: no file can be sought that far
            break
        start = -(-end // chunked.multiple) * chunked.multiple
    return None


def _end_of_au(head: bytes) -> int | None:
    """Return where the samples of an AU file end by the start of its header; `None` if it does not say."""
    order = _AU_FORMS[head[:4]]
    num_bytes = int.from_bytes(head[8:12], order)
    return int.from_bytes(head[4:8], order) + num_bytes if num_bytes < _UNKNOWN[4] else None


def _end_of_sphere(file: IO[bytes]) -> int | None:
    """Return where the samples of a NIST SPHERE file end by its header; `None` if it does not say."""
    file.seek(len(_SPHERE_FORM))
    try:
        head_bytes = int(file.read(8))
        if not 0 < head_bytes <= _MAX_SPHERE_HEAD_BYTES:
            return None
        file.seek(0)
        lines = file.read(head_bytes).decode("latin-1").split("end_head")[0].splitlines()
        fields = {words[0]: words[2] for words in (line.split(None, 2) for line in lines) if len(words) > 2}
        if fields.get("sample_coding", "pcm").strip() not in _SPHERE_CODINGS:
            return None
        sizes = [int(fields[name]) for name in ("sample_count", "channel_count", "sample_n_bytes")]
    except (ValueError, KeyError):
        return None
    return head_bytes + sizes[0] * sizes[1] * sizes[2] if min(sizes) >= 0 else None


def _what_ogg_lacks(tail: bytes) -> str | None:
    """Say what is wrong with the end of an Ogg file; `None` if it ends as it should.

    Args:
        tail: So many last bytes that they have all of the last page, if it is whole.
    """
    start = tail.rfind(_OGG_FORM)
    while start >= 0:
        head = tail[start : start + _OGG_HEAD_BYTES]
        if head[4:5] in (b"", b"\0"):  # else these four bytes stand somewhere in the samples
            break
        start = tail.rfind(_OGG_FORM, 0, start)
    if start < 0:
        return "it ends in something else than a page of Ogg"
    sizes = tail[start + _OGG_HEAD_BYTES : start + _OGG_HEAD_BYTES + head[26]] if len(head) == _OGG_HEAD_BYTES else b""
    if len(head) < _OGG_HEAD_BYTES or len(sizes) < head[26]:
        return "it ends in the header of a page"
    missing = start + _OGG_HEAD_BYTES + len(sizes) + sum(sizes) - len(tail)
    if missing > 0:
        return f"its last page lacks {missing} bytes"
    return None if head[5] & _OGG_END_OF_STREAM else "its last page does not say that the stream ends there"

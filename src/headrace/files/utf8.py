"""Decodes UTF-8, with errors that name line and byte."""

from __future__ import annotations

from headrace.errors import SourceError


def decode_utf8(data: bytes, where: str, *, first_byte: int = 0, first_line: int = 1) -> str:
    """Return the text of UTF-8 bytes.

    Args:
        data: The bytes.
        where: The file, or the file and line.
        first_byte: Offset of the first byte in the file, for the error.
        first_line: Number of the first line, for the error.

    Raises:
        SourceError: They are not UTF-8; it names the byte.
    """
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise SourceError(
            f"the text is not UTF-8: byte 0x{data[error.start]:02x}, {error.reason}",
            where=f"{where}, line {line}, byte {first_byte + error.start}",
            fix="convert the file: iconv -f latin1 -t utf-8",
        ) from error

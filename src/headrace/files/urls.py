"""What is a URL, and how it may be shown. Nothing is asked of anybody here."""

from __future__ import annotations

import os
import re

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(?:://|::)")
_LOCAL = re.compile(r"(?:file|local)://", re.IGNORECASE)
_SECRETS = re.compile(r"(?<=://)[^/@\s]*@")
_QUERIES = re.compile(r"(https?://[^\s?'\"]*)\?[^\s'\"]+", re.IGNORECASE)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is a URL, `"s3://..."` or chained as `"zip://a.hdf::s3://..."`, and no local path."""
    text = os.fspath(path)
    return _URL.match(text) is not None and "://" in text


def local_path(path: str | os.PathLike[str]) -> str | None:
    """Return the local path that is meant, taken out of `file://` if need be; None for a URL of another kind."""
    text = os.fspath(path)
    if not is_url(text):
        return text
    if _LOCAL.match(text) and "::" not in text:
        return _LOCAL.sub("", text)
    return None


def shown_url(text: str) -> str:
    """Return a URL, or a text with URLs, for messages: without user, password and query, which may be a signature."""
    return _QUERIES.sub(r"\1?...", _SECRETS.sub("", text))

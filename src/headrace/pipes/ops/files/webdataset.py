"""The WebDataset convention: files with the same stem form one sample."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any

from headrace.errors import SourceError

from ...core.base import IterPipe, State, read
from ...core.registry import functional_pipe
from ...core.streams import StreamWrapper

_STEM_AND_SUFFIX = re.compile(r"^((?:.*/)?[^/.]*)(\.[^/]*)$", re.DOTALL)


@functional_pipe("webdataset")
class WebDataset(IterPipe[Any]):
    """Join consecutive files with the same stem into a dict: suffix -> data, and the stem as `__key__`.

    `a/b.seg.png` has the stem `a/b` and the suffix `.seg.png`. Files without a suffix are skipped.

    Args:
        source_datapipe: The source, whose items are (path, data), for example from `load_from_tar`.

    Raises:
        SourceError: Two files of one sample have the same suffix (while iterating).
    """

    def __init__(self, source_datapipe: IterPipe[Any]) -> None:
        self.source_datapipe = source_datapipe
        self.reset()

    def reset(self) -> None:
        self._pending: dict[str, Any] = {}
        self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        for path, data in () if self._has_ended else read(self.source_datapipe):
            match = _STEM_AND_SUFFIX.match(path)
            if match is None:
                continue
            stem, suffix = match.groups()
            sample = self._pending
            if sample and stem == sample["__key__"]:
                if suffix in sample:
                    raise SourceError("two files of one sample have the same name", where=path)
                sample[suffix] = data
                continue
            self._pending = {"__key__": stem, suffix: data}
            del data  # else it would be open until the next one comes
            if sample:
                yield sample
            del sample
        self._has_ended = True
        if sample := self._pending:
            self._pending = {}
            yield sample

    def state(self) -> State:
        for suffix, data in self._pending.items():
            if isinstance(data, StreamWrapper):  # the first file of the next sample: it is small, and not read yet
                self._pending[suffix] = _as_stream(data.read(), data.name)
        return {
            "sample": [
                [suffix, True, data.file_obj.getvalue(), data.name]
                if isinstance(data, StreamWrapper)
                else [suffix, False, data, None]
                for suffix, data in self._pending.items()
            ],
            "has_ended": self._has_ended,
        }

    def restore(self, state: State) -> None:
        self._pending = {
            suffix: _as_stream(data, name) if is_stream else data for suffix, is_stream, data, name in state["sample"]
        }
        self._has_ended = state["has_ended"]


def _as_stream(data: bytes | str, name: str | None) -> StreamWrapper:
    return StreamWrapper(io.StringIO(data) if isinstance(data, str) else io.BytesIO(data), name=name)

"""UTF-8 bytes as classes: no file, no unknown text, 256 classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import SourceError

from .vocabulary import Vocabulary
from .vocabulary_labels import check_postfix


class Utf8ByteTargets(Vocabulary):
    """The UTF-8 bytes of a text as classes 0..255, as RETURNN's class of this name has them.

    Args:
        seq_postfix: Class indices that follow each text.

    Raises:
        ConfigError: The postfix holds something else than 0..255.
    """

    def __init__(self, seq_postfix: Sequence[int] | None = None) -> None:
        self.labels = [chr(byte) for byte in range(256)]
        self._postfix = check_postfix(seq_postfix, 256)

    @property
    def identity(self) -> list[Any]:
        """Its kind and postfix."""
        return [type(self).__name__, self._postfix.tolist()]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the bytes of a text, `int32[T]`."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise SourceError(f"the text has no UTF-8: {error.reason} at {error.start}", fix="correct it") from error
        return np.concatenate([np.frombuffer(data, np.uint8).astype(np.int32), self._postfix])

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of bytes; what is not UTF-8 in them is shown as U+FFFD."""
        return bytes(self.check_classes(indices)).decode(errors="replace")

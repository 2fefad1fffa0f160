"""The contract of a vocabulary: from a text to class indices and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Vocabulary(ABC):
    """Class indices for texts. It may be pickled, and the copy gives the same indices.

    Attributes:
        labels: The text of each class.
    """

    labels: Sequence[str]

    @property
    def dim(self) -> int:
        """Number of classes."""
        return len(self.labels)

    @property
    @abstractmethod
    def identity(self) -> list[Any]:
        """JSON data that names its kind, all options, and a digest of its files: equal ones encode equally."""

    @abstractmethod
    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`.

        Raises:
            SourceError: A part of the text has no class, and there is none for unknown ones.
        """

    @abstractmethod
    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of class indices."""

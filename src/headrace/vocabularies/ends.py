"""Start and end of a text, for any vocabulary, and inputs with the targets that follow them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

from .base import Vocabulary, init_vocabulary
from .labels import Utf8ByteTargets


class WithEnds(Vocabulary):
    """A vocabulary, with a class before or behind each text: `<s>`, `</s>`, or whatever they are called.

    A symbol that is a label of the vocabulary has that class; others get classes of their own behind those of the
    vocabulary, the start first. What the vocabulary itself puts around a text stays, so choose one that does not.

    Args:
        vocab: The vocabulary, a dict of one (see `init_vocabulary`), or "bytes".
        bos: Symbol of the start.
        eos: Symbol of the end. It may be the same.
        adds: Which of them a text gets: "both", "bos", "eos" or "none"; the others are classes all the same.

    Attributes:
        inner: The vocabulary.
        bos_label_id: Class of the start, or `None`.
        eos_label_id: Class of the end, or `None`.

    Raises:
        ConfigError: An option is wrong.
    """

    def __init__(
        self,
        vocab: Vocabulary | Mapping[str, Any] | str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        adds: str = "both",
    ) -> None:
        if adds not in ("both", "bos", "eos", "none"):
            raise ConfigError(f"adds is {adds!r}", where="WithEnds", fix='one of "both", "bos", "eos", "none"')
        for name, symbol in (("bos", bos), ("eos", eos)):
            if symbol is None and adds == name:
                raise ConfigError(f"adds is {adds!r}, and there is no {name}=", where="WithEnds", fix="name the symbol")
            if symbol is not None and (not isinstance(symbol, str) or not symbol):
                raise ConfigError(f"{name} is {symbol!r}, not a text", where="WithEnds", fix='for example "</s>"')
        self.inner = Utf8ByteTargets() if vocab == "bytes" else init_vocabulary(vocab)  # type: ignore[arg-type]
        self._said = [bos, eos, adds]
        labels = list(self.inner.labels)
        self.bos_label_id, self.eos_label_id = (_class_in(labels, symbol) for symbol in (bos, eos))
        self.labels = labels
        self._before = self.bos_label_id if adds in ("both", "bos") else None
        self._behind = self.eos_label_id if adds in ("both", "eos") else None

    @property
    def identity(self) -> list[Any]:
        """Its kind, options, and the identity of the vocabulary."""
        return [type(self).__name__, *self._said, self.inner.identity]

    def encode(self, text: str) -> NDArray[np.int32]:
        """Return the class indices of a text, `int32[T]`, with those of its ends."""
        before, behind = (np.array([] if one is None else [one], np.int32) for one in (self._before, self._behind))
        return np.concatenate([before, self.inner.encode(text), behind])

    def decode(self, indices: Iterable[int]) -> str:
        """Return the text of class indices, without start and end."""
        ends = {self.bos_label_id, self.eos_label_id}
        return self.inner.decode([class_idx for class_idx in self.check_classes(indices) if class_idx not in ends])


def _class_in(labels: list[str], symbol: str | None) -> int | None:
    """Return the class of a symbol; a new one becomes the last label."""
    if symbol is None:
        return None
    if symbol not in labels:
        labels.append(symbol)
    return labels.index(symbol)


def next_token_fields(
    field: str,
    vocab: Vocabulary | Mapping[str, Any] | str,
    *,
    eos: str,
    bos: str | None = None,
    data_key: str = "data",
    targets: str = "targets",
) -> dict[str, dict[str, Any]]:
    """Return `fields=` for a language model: each text as inputs, and as the targets one step ahead.

    Of the text `a b`, the inputs are `<bos> a b` and the targets `a b <eos>`: both have its length and one more.

    Args:
        field: Field or column of the text; "text" for `TextSource`.
        vocab: A vocabulary or tokenizer that puts no end symbols around texts itself, a dict of one, or "bytes".
        eos: Symbol of the end, see `WithEnds`.
        bos: Symbol of the start; that of the end, if `None`.
        data_key: Data key of the inputs.
        targets: Data key of the targets.

    Raises:
        ConfigError: An option is wrong, or the vocabulary puts end symbols around a text.
    """
    inner = Utf8ByteTargets() if vocab == "bytes" else init_vocabulary(vocab)  # type: ignore[arg-type]
    if len(inner.encode("")):
        raise ConfigError(
            f"the vocabulary makes {inner.encode('').tolist()} of an empty text: it puts symbols around texts itself",
            where="next_token_fields",
            fix="switch that off: with_template=False for a HuggingFaceTokenizer, no add_bos, add_eos or seq_postfix",
        )
    bos = eos if bos is None else bos
    return {
        data_key: {"field": field, "vocab": WithEnds(inner, bos=bos, eos=eos, adds="bos")},
        targets: {"field": field, "vocab": WithEnds(inner, bos=bos, eos=eos, adds="eos")},
    }

"""Start and end of a text, for any vocabulary, and inputs with the targets that follow them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigError

from .base import Vocabulary, init_vocabulary, short_form

ADDS = ("both", "bos", "eos", "none")


class WithEnds(Vocabulary):
    """A vocabulary, with a class before or after each text: `<s>`, `</s>`, or whatever they are called.

    A symbol that is a label of the vocabulary has that class; others get classes of their own after those of the
    vocabulary, the start first. What the vocabulary itself puts around a text stays, so choose one that does not.

    Args:
        vocab: What `init_vocabulary` takes. In the dict of a field of a source, "chars" as well.
        bos: Symbol of the start.
        eos: Symbol of the end. It may be the same.
        adds: Which of them a text gets: "both", "bos", "eos" or "none"; the others are classes all the same.

    Attributes:
        inner: The vocabulary.
        bos_label_id: Class of the start, or `None`.
        eos_label_id: Class of the end, or `None`.

    Raises:
        ConfigError: An option is wrong.

    Examples:
        >>> import headrace as hr
        >>> vocabulary = hr.WithEnds("bytes", bos="<s>", eos="</s>")
        >>> vocabulary.encode("hi").tolist()
        [256, 104, 105, 257]
    """

    def __init__(
        self,
        vocab: Any,
        *,
        bos: str | None = None,
        eos: str | None = None,
        adds: str = "both",
    ) -> None:
        check_ends(bos, eos, adds)
        self.inner = init_vocabulary(vocab)
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


def check_ends(bos: Any, eos: Any, adds: Any) -> None:
    """Check the options of `WithEnds`.

    Raises:
        ConfigError: One is wrong.
    """
    if adds not in ADDS:
        raise ConfigError(f"adds is {adds!r}", where="WithEnds", fix='one of "both", "bos", "eos", "none"')
    for name, symbol in (("bos", bos), ("eos", eos)):
        if symbol is None and adds == name:
            raise ConfigError(f"adds is {adds!r}, and there is no {name}=", where="WithEnds", fix="name the symbol")
        if symbol is not None and (not isinstance(symbol, str) or not symbol):
            raise ConfigError(f"{name} is {symbol!r}, not a text", where="WithEnds", fix='for example "</s>"')


def _class_in(labels: list[str], symbol: str | None) -> int | None:
    """Return the class of a symbol; a new one becomes the last label."""
    if symbol is None:
        return None
    if symbol not in labels:
        labels.append(symbol)
    return labels.index(symbol)


def next_token_fields(
    field: str,
    vocab: Any,
    *,
    eos: str | None = None,
    bos: str | None = None,
    data_key: str = "data",
    targets: str = "targets",
) -> dict[str, dict[str, Any]]:
    """Return `fields=` for a language model: each text as inputs, and as the targets one step ahead.

    Of the text `a b`, the inputs are `<bos> a b` and the targets `a b <eos>`: both have its length and one more.

    Args:
        field: Field or column of the text; "text" for `TextSource`.
        vocab: What `init_vocabulary` takes, or "chars": the characters of the texts. The path or the object of a
            tokenizer is used without the special tokens that it puts around a text. Any other vocabulary must be one
            that puts none there.
        eos: Symbol of the end, see `WithEnds`; that of the vocabulary, if `None`.
        bos: Symbol of the start; that of the end, if `None`.
        data_key: Data key of the inputs.
        targets: Data key of the targets.

    Raises:
        ConfigError: An option is wrong, the vocabulary puts symbols around a text, or it knows no end and there is no
            `eos`.
    """
    if isinstance(vocab, str) and vocab == "chars":
        eos = _named_end(eos, None)
        ends = {"bos": eos if bos is None else bos, "eos": eos}
        check_ends(**ends, adds="both")
        return {
            data_key: {"field": field, "vocab": {"class": "WithEnds", "vocab": "chars", **ends, "adds": "bos"}},
            targets: {"field": field, "vocab": {"class": "WithEnds", "vocab": "chars", **ends, "adds": "eos"}},
        }
    short = short_form(vocab)
    if short is not None and short["class"] == "HuggingFaceTokenizer":
        vocab = {**short, "with_template": False}
    inner = init_vocabulary(vocab)
    if len(inner.encode("")):
        raise ConfigError(
            f"the vocabulary makes {inner.encode('').tolist()} of an empty text: it puts symbols around texts itself",
            where="next_token_fields",
            fix="switch that off: with_template=False for a HuggingFaceTokenizer, no add_bos, add_eos or seq_postfix",
        )
    eos = _named_end(eos, inner)
    bos = eos if bos is None else bos
    return {
        data_key: {"field": field, "vocab": WithEnds(inner, bos=bos, eos=eos, adds="bos")},
        targets: {"field": field, "vocab": WithEnds(inner, bos=bos, eos=eos, adds="eos")},
    }


def _named_end(eos: str | None, inner: Vocabulary | None) -> str:
    """Return the symbol of the end: the one that was given, or else that of the vocabulary."""
    if eos is not None:
        return eos
    if inner is None or inner.eos_label_id is None:
        raise ConfigError(
            "the vocabulary knows no symbol of the end", where="next_token_fields", fix='name one: eos="</s>"'
        )
    return inner.labels[inner.eos_label_id]

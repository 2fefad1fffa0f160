"""A `Card`: what an object says of itself, as one line (`repr`) and as HTML (notebooks).

Invariants: showing an object starts nothing, reads no sequence, and fails for no reason: a debugger does it at any
moment. What is not known without work is left out. Names and tags of users are escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.specs import DataSpec

_MAX_KEYS = 6  # in one line
_MAX_CHARS = 60  # of one fact in one line
_NUM_BINS = 16
_MAX_LENGTHS = 20_000  # this many are looked at for a histogram: a stretch here and there of a long column
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Card:
    """What is known of an object.

    Attributes:
        title: Its class, and its name if it has one.
        facts: Pairs of (what, text); in one line only the text stands, so it says what it is.
        keys: Data key -> layout, such as `"float32[T, 40]"`.
        lengths: Data key -> frames of each sequence, `int[N]`, of the keys whose lengths are known.
        parts: Cards of what it is made of.
    """

    title: str
    facts: Iterable[tuple[str, str]] = ()
    keys: Mapping[str, str] = field(default_factory=dict)
    lengths: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    parts: Iterable[Card] = ()

    def line(self) -> str:
        """Return it in one line."""
        texts = [_shorten(text) for _, text in self.facts]
        shown = [self._key_text(key, layout) for key, layout in list(self.keys.items())[:_MAX_KEYS]]
        if len(self.keys) > _MAX_KEYS:
            shown.append(f"{len(self.keys) - _MAX_KEYS} more keys")
        said = ", ".join([*texts, *map(_shorten, shown)])
        return f"<{self.title}: {said}>" if said else f"<{self.title}>"

    def _key_text(self, key: str, layout: str) -> str:
        lengths = self.lengths.get(key)
        line = sparkline(lengths) if lengths is not None and len(lengths) else ""
        return " ".join([f"{key}:", *filter(None, [layout, line])])

    def html(self) -> str:
        """Return it as HTML: a table in the colours of the page around it."""
        return f'<div style="font-family: sans-serif; font-size: 13px; line-height: 1.5">{self._body()}</div>'

    def _body(self) -> str:
        rows = "".join(f"<tr>{_cell(what, is_name=True)}{_cell(text)}</tr>" for what, text in self.facts)
        parts = [f"<b>{_escape(self.title)}</b>", f"<table>{rows}</table>" if rows else "", self._keys_html()]
        parts += [f'<div style="margin-left: 1.5em">{part._body()}</div>' for part in self.parts]
        return "".join(parts)

    def _keys_html(self) -> str:
        if not self.keys:
            return ""
        rows = []
        for key, layout in self.keys.items():
            lengths = self.lengths.get(key)
            about = "<td></td><td></td>"
            if lengths is not None and len(lengths):
                about = _cell(describe_lengths(lengths)) + f"<td>{_bars(lengths)}</td>"
            rows.append(f"<tr>{_cell(key, is_name=True)}{_cell(layout)}{about}</tr>")
        head = "".join(f'<th style="text-align: left">{name}</th>' for name in ("key", "layout", "lengths", ""))
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


class Shown:
    """A class whose objects show themselves by a card."""

    __slots__ = ()

    def _card(self) -> Card:
        """Return what is known of this object, without work."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return card_of(self).line()

    def _repr_html_(self) -> str:
        return card_of(self).html()


def card_of(shown: Any) -> Card:
    """Return the card of an object that has a method `_card`; whatever goes wrong there, there is one."""
    try:
        card: Card = shown._card()
    except Exception as error:  # noqa: BLE001 (also of a user-defined class, half made, or closed)
        return Card(type(shown).__name__, [("cannot be shown", f"cannot be shown ({type(error).__name__})")])
    return card


def layout_of(spec: DataSpec) -> str:
    """Return the layout of a data key in one word or two.

    >>> layout_of(DataSpec("float32", (40,), dim=40)), layout_of(DataSpec("int32", (), sparse=True, dim=10))
    ('float32[T, 40]', 'int32[T] of 10')
    """
    axes = (["T"] if spec.has_time else []) + ["?" if size is None else str(size) for size in spec.shape]
    classes = f" of {spec.dim:,}" if spec.sparse and spec.dim else ""
    return f"{spec.dtype}[{', '.join(axes)}]{classes}"


def layout_of_value(value: Any) -> str:
    """Return the layout of what a batch holds under a data key: an array, a tensor, or a list."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return f"{len(value)} values" if hasattr(value, "__len__") else type(value).__name__


def describe_lengths(lengths: NDArray[Any]) -> str:
    """Return the range and the median of lengths; of a long column, of a sample.

    >>> describe_lengths(np.arange(1, 101))
    '1 to 100, median 50'
    """
    shortest, median, longest = np.quantile(_sample(lengths), [0, 0.5, 1], method="inverted_cdf")
    return f"{shortest:,} to {longest:,}, median {median:,}" if shortest != longest else f"{longest:,}"


def sparkline(lengths: NDArray[Any]) -> str:
    """Return a histogram of lengths in one line of text.

    >>> sparkline(np.array([1, 2, 2, 3, 3, 3, 8]))
    '▄▆█▁▁▁▁▄'
    """
    sample = _sample(lengths)
    shortest, longest = int(sample.min()), int(sample.max())
    if shortest == longest:
        return ""  # nothing to see
    width = -(-(longest - shortest + 1) // _NUM_BINS)  # whole, so that all bins hold as many lengths
    counts = np.bincount((sample - shortest) // width)
    heights = np.ceil(counts / counts.max() * (len(_BLOCKS) - 1)).astype(int)
    return "".join(_BLOCKS[height] for height in heights.tolist())


def _sample(lengths: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(lengths[:: max(len(lengths) // _MAX_LENGTHS, 1)])


def _bars(lengths: NDArray[Any]) -> str:
    return f'<span style="letter-spacing: -1px" title="histogram of lengths">{sparkline(lengths)}</span>'


def _escape(text: str) -> str:
    import html  # not needed in training

    return html.escape(text)


def _cell(text: str, *, is_name: bool = False) -> str:
    style = "text-align: left; padding-right: 1em" + ("; opacity: 0.7" if is_name else "")
    return f'<td style="{style}">{_escape(text)}</td>'


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS // 2]}...{text[-_MAX_CHARS // 2 + 3 :]}"

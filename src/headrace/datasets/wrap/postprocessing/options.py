"""The options of a `PostprocessingDataset`, checked when it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.engine import EngineOptions, Skipping
from headrace.errors import ConfigError
from headrace.rng import wants_rng

from ...checks import check_count, check_flag
from .functions import parse_function

_OF_INNER = (  # options that say which sequences there are, and in which order
    "seq_ordering",
    "partition_epoch",
    "repeat_epoch",
    "seq_list_filter_file",
    "unique_seq_tags",
    "seq_order_seq_lens_file",
)
_HARMLESS = (None, 0, 1, False, "default")


def check_inherited(options: Mapping[str, Any]) -> None:
    """Refuse options of every dataset that would have no effect here.

    Raises:
        ConfigError: One says which sequences there are, or their order.
    """
    for name in _OF_INNER:
        if name in options and options[name] not in _HARMLESS:
            raise ConfigError(
                f"{name}={options[name]!r} of a PostprocessingDataset: which sequences there are, and in which order, "
                "is said by the inner dataset",
                fix=f'give {name} in the config "dataset"; a stream is sorted by LaplaceOrdering',
            )


@dataclass(frozen=True)
class FunctionOptions:
    """The function, its declared properties, and what calls it. Attributes are named as the arguments of the dataset.

    Raises:
        ConfigError: One is wrong, or two do not go together.
    """

    map_seq: Any
    map_seq_stream: Any
    map_outputs: Mapping[str, Any] | None
    map_seq_stream_preserves_num_seqs: bool | None
    buf_size: int
    num_workers: int
    map_seq_preserves_lengths: bool
    engine_options: EngineOptions | None

    def __post_init__(self) -> None:
        """Check each option; parse the function."""
        if (self.map_seq is None) == (self.map_seq_stream is None):
            given = "both are" if self.map_seq is not None else "none is"
            raise ConfigError(f"one of map_seq and map_seq_stream is needed, {given} given")
        check_count("buf_size", self.buf_size, minimum=1)
        check_count("num_workers", self.num_workers)
        check_flag("map_seq_preserves_lengths", self.map_seq_preserves_lengths)
        if self.map_seq is not None:
            self._check_of_seq()
        else:
            self._check_of_stream()

    def _check_of_seq(self) -> None:
        object.__setattr__(self, "map_seq", parse_function("map_seq", self.map_seq))
        if self.map_seq_stream_preserves_num_seqs is not None:
            raise ConfigError("map_seq_stream_preserves_num_seqs is for map_seq_stream", fix="leave it out")

    def _check_of_stream(self) -> None:
        function, keeps_count = (
            parse_function("map_seq_stream", self.map_seq_stream),
            self.map_seq_stream_preserves_num_seqs,
        )
        if keeps_count is None:
            keeps_count = getattr(function, "preserves_num_seqs", False) is True
        keeps_count = check_flag("map_seq_stream_preserves_num_seqs", keeps_count)
        object.__setattr__(self, "map_seq_stream", function)
        object.__setattr__(self, "map_seq_stream_preserves_num_seqs", keeps_count)
        if self.map_seq_preserves_lengths:
            raise ConfigError("map_seq_preserves_lengths is for map_seq", fix="leave it out")
        if self.skips:
            raise ConfigError(
                "on_error=Skipping(...) with map_seq_stream: a stream cannot go on behind an error",
                fix="leave it out, or catch errors in the function",
            )

    @property
    def keeps_count(self) -> bool:
        """Whether as many sequences come out as go in."""
        return self.map_seq is not None or bool(self.map_seq_stream_preserves_num_seqs)

    @property
    def draws(self) -> bool:
        """Whether the function of a sequence gets a generator."""
        return self.map_seq is not None and wants_rng(self.map_seq)

    @property
    def skips(self) -> bool:
        """Whether sequences that fail are left out, so that their number is not known before the end."""
        return self.engine_options is not None and isinstance(self.engine_options.on_error, Skipping)

    @property
    def wants_engine(self) -> bool:
        """Whether an engine calls the function: with workers, or in this process if `engine_options` are given."""
        return self.num_workers > 0 or self.engine_options is not None

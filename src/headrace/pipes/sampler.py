"""What a sampler of torch's kind gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any

from headrace.errors import ConfigError

from .base import IterPipe


class Sampler(IterPipe[Any]):
    """Give what a sampler gives that is made for a pipe: of most samplers, numbers of its items.

    Args:
        datapipe: A pipe that knows its length.
        sampler: A class of `torch.utils.data.sampler`, or any function whose `data_source` is the pipe, and that
            returns what can be iterated over in each epoch. `None`: `0..len-1`.
        sampler_args: Its positional arguments.
        sampler_kwargs: Its other arguments.

    Raises:
        ConfigError: The pipe does not know its length.
    """

    def __init__(
        self,
        datapipe: Any,
        sampler: Callable[..., Iterable[Any]] | None = None,
        sampler_args: tuple[Any, ...] | None = None,
        sampler_kwargs: dict[str, Any] | None = None,
    ) -> None:
        try:
            length = len(datapipe)
        except TypeError as error:
            raise ConfigError(
                f"Sampler needs a pipe that knows its length: {error}", fix="use .set_length(n)"
            ) from None
        self.datapipe = datapipe
        arguments = {**(sampler_kwargs or {}), "data_source": datapipe}
        self.sampler: Iterable[Any] = range(length) if sampler is None else sampler(*(sampler_args or ()), **arguments)

    def __iter__(self) -> Iterator[Any]:
        yield from self.sampler

    def __len__(self) -> int:
        if isinstance(self.sampler, Sized):
            return len(self.sampler)
        return super().__len__()

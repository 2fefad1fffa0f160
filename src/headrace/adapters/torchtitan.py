"""A loader in torchtitan: `dataloader=HeadraceDataLoader.Config(make_loader="my_data:make_loader")` in its config.

torchtitan trains for a number of steps, so it is given the epochs one after the other (`StepLoader`). Its checkpoints
hold the position; that is the same for all data-parallel ranks, so their number may be another one after a resume.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError

try:
    from torchtitan.components.dataloader import BaseDataLoader
except ImportError as error:
    raise ConfigError(
        "headrace.adapters.torchtitan needs torchtitan", fix="pip install 'headrace[torchtitan]'"
    ) from error

from headrace.loading import Batch, DataLoader

from .torch import TorchLoader
from .trainers import StepLoader, has_own_shards

__all__ = ["HeadraceDataLoader"]


class HeadraceDataLoader(BaseDataLoader):  # type: ignore[misc, unused-ignore]
    """The training loader for torchtitan: `({"input": ...}, labels)` of a loader that your function makes.

    The function is called in each process as `make_loader(rank=, world_size=, batch_size=, seq_len=, tokenizer=)`, by
    what torchtitan says of data parallelism, and returns a `headrace.DataLoader` for this rank. Of its batches, the
    labels have a data key of their own, and all others are handed to the model by their names. If sequences share rows
    (`Pack`), `"positions"` is added: the position of each token in its sequence.

    Args:
        config: See `Config`.
        dp_world_size: Number of data-parallel ranks.
        dp_rank: Which one this is.
        local_batch_size: Sequences (or rows) of a batch of one rank.
        seq_len: Tokens of a row.
        tokenizer: torchtitan's.
        **others: What else torchtitan tells its loaders; not needed.

    Raises:
        ConfigError: The function is not there, returns no loader, or one for another rank.

    Examples:
        >>> config = HeadraceDataLoader.Config(make_loader="my_data:make_loader")  # of a config function of torchtitan
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc, unused-ignore]
        """Options.

        Attributes:
            make_loader: The function, as `"package.module:function"`.
            input_key: Data key of the tokens that go in, `int64[B, T]`.
            labels_key: Data key of the tokens to be predicted, `int64[B, T]`.
        """

        make_loader: str = ""
        input_key: str = "input"
        labels_key: str = "labels"

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        local_batch_size: int,
        seq_len: int,
        tokenizer: Any = None,
        **others: Any,
    ) -> None:
        del others
        self.config = config
        loader = _function_of(config.make_loader)(
            rank=dp_rank, world_size=dp_world_size, batch_size=local_batch_size, seq_len=seq_len, tokenizer=tokenizer
        )
        self._steps = StepLoader(loader)
        found = self._steps.loader.ranks
        has_shards = has_own_shards(self._steps)
        if not has_shards and (found.rank, found.world_size) != (dp_rank, dp_world_size):
            raise ConfigError(
                f"torchtitan asks for data-parallel rank {dp_rank} of {dp_world_size}, and the loader is for rank "
                f"{found.rank} of {found.world_size} ({found.source})",
                where=config.make_loader,
                fix="pass rank=rank, world_size=world_size to headrace.DataLoader",
            )
        self._key = f"position_of_rank_{dp_rank}" if has_shards else "position"

    @property
    def loader(self) -> DataLoader:
        """The loader that the function has made."""
        return self._steps.loader

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Any]]:
        """Return the next batches, without an end."""
        return iter(lambda: self._split(self._steps.take()), None)

    def _split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        config, inputs = self.config, dict(batch)
        for key in (config.input_key, config.labels_key):
            if key not in inputs:
                raise ConfigError(
                    f"a batch has the data keys {sorted(inputs)}, and not {key!r}",
                    where=config.make_loader,
                    fix="give input_key= and labels_key= of HeadraceDataLoader.Config",
                )
        labels, tokens = inputs.pop(config.labels_key), inputs.pop(config.input_key)
        if isinstance(batch, Batch) and batch.packing is not None:
            inputs["positions"] = batch.packing.positions
        return {"input": tokens, **inputs}, labels

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch that the trainer got, as one text."""
        return {self._key: json.dumps(self._steps.state_dict())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state; an empty one, of a checkpoint of the model alone, is the beginning."""
        if state_dict:
            self._steps.load_state_dict(json.loads(state_dict[self._key]))


def _function_of(name: str) -> Callable[..., DataLoader | TorchLoader]:
    try:
        found: Any = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"make_loader={name!r} names no function: {error}",
            where="HeadraceDataLoader.Config",
            fix='say "package.module:function", of a module that can be imported where the training is started',
        ) from error
    return found  # type: ignore[no-any-return]

"""Where the consumer of a `DataLoader` is, as data that can be saved, and how the same order is had again.

torch's samplers draw their order when an iteration begins, from a generator or from the global ones; so a position is
the states of these before the iteration, and how many batches were delivered since. To resume, the states are restored,
the sampler is asked again, and its first batches are passed over, which reads no data. Invariant: a digest of what the
sampler gave tells whether that was the same.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import torch
import xxhash
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, SequentialSampler

from headrace.datasets.digests import digest_of_state
from headrace.errors import ResumeError
from headrace.rng.process import kept_globals

FORMAT = 2
_ADDED = {"_iterator_finished"}  # what accelerate notes for itself in the state that it was given


class TorchState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position of a `DataLoader`, plain JSON data but for what the dataset says of itself.

    Attributes:
        format: Version of this schema.
        generators: States of the generators of the loader and its samplers, before the iteration, base64.
        batches: How many batches were delivered; None: the iteration is over, or did not begin.
        tickets: Iterable-style datasets: where the workers' streams are.
        is_last: Whether this was the last batch, of a sampler that is told the number of the next epoch.
        num_workers: Number of workers of an iterable-style dataset, each of which reads a copy of its own; else None.
        seed: torch's base seed of the iteration.
        shared_seed: That of data pipes of torch, in an iteration; else None.
        order: Digest of what the sampler gave so far, or of the items of the streams.
        globals: States of the global generators of torch, Python and NumPy before the iteration, base64, where the
            sampler may draw from them.
        digest: Digest of all of the above.
        dataset: What the dataset's own `state_dict` returned, if it has one, and there are no `copies`.
        copies: Where the workers' copies of an iterable-style dataset are, see `CopyState`, if they tell.
    """

    format: int
    generators: list[str]
    batches: int | None = None
    tickets: int = 0
    is_last: bool = False
    num_workers: int | None = None
    seed: int = 0
    shared_seed: int | None = None
    order: str = ""
    globals: list[str] | None = None
    digest: str | None = None
    dataset: Any = None
    copies: list[Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as data."""
        state = {name: getattr(self, name) for name in self.__struct_fields__}
        own = {name: state.pop(name) for name in ("dataset", "copies")}
        return {**state, **own, "digest": digest_of_state(state, without="digest")}

    @classmethod
    def of_dict(cls, state: Mapping[str, Any]) -> TorchState:
        """Check what somebody saved.

        Raises:
            ResumeError: It is no state of this class, or not as it was saved.
        """
        try:
            loaded = msgspec.convert({name: value for name, value in state.items() if name not in _ADDED}, cls)
        except (TypeError, ValueError) as error:
            raise ResumeError(
                f"this is not a state of a headrace.torch.DataLoader: {error}",
                fix="give what its state_dict() returned, as it was",
            ) from error
        if loaded.format != FORMAT or loaded.to_dict()["digest"] != loaded.digest:
            raise ResumeError(
                f"the state has another format than {FORMAT}, or was changed since it was saved",
                fix="resume from what state_dict() returned, with the version of Headrace that saved it",
            )
        return loaded


class Generators:
    """The generators that decide an order: those of a loader and of its samplers, or else the global ones.

    Args:
        loader: A loader of torch's.
    """

    def __init__(self, loader: Any) -> None:
        found = [loader.generator, *(getattr(sampler, "generator", None) for sampler in _samplers_of(loader))]
        own = {id(one): one for one in found if isinstance(one, torch.Generator)}
        self._own = list(own.values())
        says_order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        if type(says_order) is BatchSampler:
            says_order = says_order.sampler
        self._needs_globals = not (isinstance(loader.dataset, IterableDataset) or _draws_from_own(says_order))

    def save(self) -> tuple[list[Any], list[Any] | None]:
        """Return the states of all, as raw values; the second part is that of the global ones, where they matter."""
        own = [one.get_state() for one in self._own]
        if not self._needs_globals:
            return own, None
        return own, [torch.get_rng_state(), random.getstate(), np.random.get_state()]

    def restore_own(self, states: list[str]) -> None:
        """Put the generators of the loader and its samplers into saved states.

        Raises:
            ResumeError: They are not as many.
        """
        if len(states) != len(self._own):
            raise ResumeError(
                f"the state has {len(states)} generators, and the loader and its samplers have {len(self._own)}",
                fix="give the loader and its samplers generators as before",
            )
        for one, state in zip(self._own, states, strict=True):
            one.set_state(_tensor_of(state))


def _samplers_of(loader: Any) -> list[Any]:
    """Return the samplers of a loader, and those that they are made of, such as what accelerate divides."""
    found: list[Any] = []
    remaining = [loader.sampler, loader.batch_sampler]
    while remaining:
        sampler = remaining.pop(0)
        if sampler is not None and not any(sampler is one for one in found):
            found.append(sampler)
            remaining += [getattr(sampler, "sampler", None), getattr(sampler, "batch_sampler", None)]
    return found


def counts_epochs(loader: Any) -> bool:
    """Tell whether a sampler of a loader is told the number of each epoch."""
    return any(hasattr(sampler, "set_epoch") for sampler in _samplers_of(loader))


def _draws_from_own(sampler: Any) -> bool:
    """Tell whether the order of a sampler does not depend on the global generators."""
    if isinstance(sampler, SequentialSampler | DistributedSampler | range | list | tuple):
        return True
    return isinstance(getattr(sampler, "generator", None), torch.Generator)


def encode_states(own: list[Any], of_process: list[Any] | None) -> tuple[list[str], list[str] | None]:
    """Return what `Generators.save` returned as text."""
    texts = [_text_of(state.numpy()) for state in own]
    if of_process is None:
        return texts, None
    of_torch, (version, words, gauss), of_numpy = of_process
    python = msgspec.json.encode([version, _text_of(np.array(words, np.uint32)), gauss]).decode()
    kind, keys, position, has_gauss, cached = of_numpy
    numpy = msgspec.json.encode([kind, _text_of(keys), position, has_gauss, cached]).decode()
    return texts, [_text_of(of_torch.numpy()), python, numpy]


@contextmanager
def process_generators(states: list[str] | None) -> Iterator[None]:
    """Have the global generators in saved states for the length of a block."""
    with kept_globals():
        if states is not None:
            of_torch, of_python, of_numpy = states
            torch.set_rng_state(_tensor_of(of_torch))
            version, words, gauss = msgspec.json.decode(of_python)
            random.setstate((version, tuple(_array_of(words, np.uint32).tolist()), gauss))
            kind, keys, *rest = msgspec.json.decode(of_numpy)
            np.random.set_state((kind, _array_of(keys, np.uint32), *rest))
        yield


def encode_value(value: Any) -> bytes:
    """Return what the digest of an order takes of what a sampler gave, or a stream; of other classes only the name."""
    try:
        return msgspec.msgpack.encode(value, enc_hook=_plain)
    except (OverflowError, UnicodeEncodeError):  # a hash of more than 64 bits; a file name that is no text
        return repr(value).encode(errors="surrogatepass")


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.ndim and value.layout is torch.strided and not value.is_nested:
        try:
            value = value.numpy(force=True)
        except TypeError:  # NumPy has no such dtype
            value = value.contiguous().view(torch.uint8).numpy(force=True)
    if isinstance(value, np.ndarray) and value.ndim and not value.dtype.hasobject:
        return [value.dtype.str, value.shape, xxhash.xxh3_64_digest(value.tobytes())]
    if isinstance(value, np.generic | np.ndarray) or (isinstance(value, torch.Tensor) and not value.ndim):
        return value.tolist()
    if isinstance(value, torch.Tensor) or hasattr(value, "__next__") or not hasattr(value, "__iter__"):
        return type(value).__name__
    return list(value)


def _text_of(array: Any) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _array_of(text: str, dtype: Any) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype)


def _tensor_of(text: str) -> Any:
    return torch.from_numpy(_array_of(text, np.uint8).copy())

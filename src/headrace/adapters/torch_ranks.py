"""Communication between the ranks of a loader with torch.distributed: `gather_texts` and `all_agree`.

For `DataLoader(..., check_ranks=gather_texts)` and `DataLoader(..., agree=all_agree, agree_every=100)`. A call is one
collective of byte tensors, so that nothing that another host sends is executed. All ranks must call it, in the thread
of the other collectives of the group, or with a group of its own.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import ConfigError

try:
    import torch
    from torch import distributed
except ImportError as error:
    raise ConfigError("headrace.adapters.torch_ranks needs PyTorch", fix="pip install 'headrace[torch]'") from error

__all__ = ["all_agree", "gather_texts"]

_MAX_BYTES = 4096  # of a text, with the two bytes of its length: fingerprints of ranks have less than 1 KB


def gather_texts(text: str, group: Any = None) -> list[str]:
    """Return the texts of all ranks, in the order of the ranks; waits for all of them.

    Args:
        text: The text of this rank, less than 4 KB.
        group: The process group; None for the default one. With `functools.partial` it goes into `check_ranks`.

    Raises:
        ConfigError: torch.distributed is not initialised, or the text is too long.

    Examples:
        >>> import headrace as hr
        >>> def open_loader(corpus, **options):  # all ranks compare what they are about to read
        ...     return hr.DataLoader(corpus, batching=hr.FrameBudget(8_000), check_ranks=gather_texts, **options)
    """
    _check_initialized()
    content = text.encode()
    if len(content) > _MAX_BYTES - 2:
        raise ConfigError(f"a text of {len(content)} bytes is too long to be gathered: {_MAX_BYTES - 2} at most")
    padded = len(content).to_bytes(2, "little") + content + bytes(_MAX_BYTES - 2 - len(content))
    own = torch.tensor(list(padded), dtype=torch.uint8, device=_device_of(group))
    found = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, own, group=group)
    return [_text_of(bytes(other.cpu().tolist())) for other in found]


def all_agree(flag: bool, group: Any = None) -> bool:
    """Return whether the flag is True on all ranks; waits for all of them.

    Args:
        flag: The flag of this rank.
        group: The process group; None for the default one. With `functools.partial` it goes into `agree`.

    Raises:
        ConfigError: torch.distributed is not initialised.

    Examples:
        >>> import headrace as hr
        >>> def open_loader(corpus):  # the ranks stop together, where one has no more batches
        ...     return hr.DataLoader(corpus, batching=hr.FrameBudget(8_000), agree=all_agree, agree_every=100)
    """
    _check_initialized()
    flags = torch.tensor([int(flag)], dtype=torch.uint8, device=_device_of(group))
    distributed.all_reduce(flags, distributed.ReduceOp.MIN, group=group)
    return bool(flags.item())


def _check_initialized() -> None:
    if not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError("torch.distributed is not initialised", fix="call init_process_group(...) first")


def _device_of(group: Any) -> str:
    return "cuda" if distributed.get_backend(group) == "nccl" else "cpu"


def _text_of(padded: bytes) -> str:
    size = int.from_bytes(padded[:2], "little")
    return padded[2 : 2 + size].decode()

"""Gathers a text of each rank by torch.distributed: for `DataLoader(..., check_ranks=gather_texts)`.

One collective a call, of tensors of bytes, so that nothing that another host sends is executed. All ranks must call it.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import ConfigError

try:
    import torch
    from torch import distributed
except ImportError as error:
    raise ConfigError("headrace.adapters.torch_ranks needs PyTorch", fix="pip install 'headrace[torch]'") from error

_MAX_BYTES = 4096  # of a text, with the two that say how long it is: cards of ranks have less than 1 KB


def gather_texts(text: str, group: Any = None) -> list[str]:
    """Return the texts that all ranks gave, in the order of the ranks; waits for all of them.

    Args:
        text: Of this rank, less than 4 KB.
        group: The process group; None for the default one. With `functools.partial` it goes into `check_ranks`.

    Raises:
        ConfigError: torch.distributed is not initialised, or the text is too long.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        raise ConfigError("torch.distributed is not initialised", fix="call init_process_group(...) first")
    content = text.encode()
    if len(content) > _MAX_BYTES - 2:
        raise ConfigError(f"a text of {len(content)} bytes is too long to be gathered: {_MAX_BYTES - 2} at most")
    device = "cuda" if distributed.get_backend(group) == "nccl" else "cpu"
    padded = len(content).to_bytes(2, "little") + content + bytes(_MAX_BYTES - 2 - len(content))
    own = torch.tensor(list(padded), dtype=torch.uint8, device=device)
    found = [torch.empty_like(own) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(found, own, group=group)
    return [_text_of(bytes(other.cpu().tolist())) for other in found]


def _text_of(padded: bytes) -> str:
    size = int.from_bytes(padded[:2], "little")
    return padded[2 : 2 + size].decode()

"""The arithmetic of epochs: which full epoch, which seed, which slice. Pure functions of numbers.

`epoch` counts from 1. With `partition_epoch` = P it counts sub-epochs, and P of them make one full pass over the
corpus.
"""

from __future__ import annotations


def full_epoch_of(epoch: int, partition_epoch: int = 1) -> int:
    """Return which pass over the whole corpus an epoch belongs to, from 0; epoch 0 counts as epoch 1."""
    return (max(epoch, 1) - 1) // partition_epoch


def derive_order_seed(
    epoch: int,
    *,
    num_epochs: int = 1,
    partition_epoch: int = 1,
    fixed_random_seed: int | None = None,
    random_seed_offset: int = 0,
) -> int:
    """Return the seed of an epoch by the documented rule.

    It is the number of the full epoch, from 1, plus an offset, so that the shuffle stays the same during one full pass;
    or the fixed seed, whatever the epoch.

    Args:
        epoch: The epoch number; 0 counts as 1.
        num_epochs: How many full epochs keep the same shuffle.
        partition_epoch: Sub-epochs of a full epoch.
        fixed_random_seed: If not None, the result.
        random_seed_offset: Added otherwise.
    """
    if fixed_random_seed is not None:
        return fixed_random_seed
    return full_epoch_of(epoch, partition_epoch) // max(num_epochs, 1) + 1 + random_seed_offset


def slice_bounds(
    num_seqs: int, epoch: int, partition_epoch: int = 1, num_shards: int = 1, shard_index: int = 0
) -> tuple[int, int]:
    """Return which positions of a full-epoch order one shard of one sub-epoch gets, as (start, stop).

    The order is cut into `partition_epoch * num_shards` contiguous parts, all shards of a sub-epoch side by side; the
    first `num_seqs % parts` parts hold one more. All parts together are everything, exactly once. A part may be empty.

    Args:
        num_seqs: Length of the order.
        epoch: The epoch number; 0 counts as 1.
        partition_epoch: Sub-epochs of a full epoch.
        num_shards: Shares of a sub-epoch.
        shard_index: Which of them, from 0.
    """
    num_parts = partition_epoch * num_shards
    part = (max(epoch, 1) - 1) % partition_epoch * num_shards + shard_index
    size, num_larger = divmod(num_seqs, num_parts)
    start = part * size + min(part, num_larger)
    return start, start + size + int(part < num_larger)

"""Batches as JAX arrays on a device or sharding, put there ahead of the consumer.

JAX arrays on the CPU are views of the memory that a worker wrote, where its alignment allows; JAX then keeps the NumPy
array for as long as it needs the bytes, and while a device still copies, so nothing is overwritten before. Invariant:
`state_dict` is the position of the consumer, however far ahead batches were put.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from headrace.errors import ConfigError
from headrace.loading import Batch, DataLoader

from .ahead import LoaderOver, RunAhead, Sent, map_leaves, numeric_array

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec, Sharding
except ImportError as error:
    raise ConfigError("headrace.adapters.jax needs JAX", fix="pip install 'headrace[jax]'") from error

__all__ = ["JaxLoader", "to_jax"]


class JaxLoader(LoaderOver):
    """A loader whose batches hold JAX arrays. Not thread-safe.

    Args:
        loader: The loader to read.
        placement: See `to_jax`.
        depth: See `to_jax`.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}], batch_size=1) as loader:
        ...     batches = JaxLoader(loader, depth=1)
        ...     print(len(batches), [batch["data"].shape for batch in batches])
        1 [(1, 2)]
    """

    def __init__(self, loader: DataLoader, placement: jax.Device | Sharding | None = None, depth: int = 2) -> None:
        super().__init__(loader, "to_jax")
        if not isinstance(placement, jax.Device | Sharding | None):
            raise ConfigError(
                f"placement={placement!r} is not a device or a sharding",
                fix="give one of jax.devices(), a jax.sharding.Sharding, or None",
            )
        self._sender = _Putter(placement)
        self._tracker = self._ahead = RunAhead(loader, depth, "to_jax")

    def __iter__(self) -> Iterator[Any]:
        """Return the batches of the next epoch.

        Raises:
            ConfigError: The devices cannot share a batch evenly.
        """
        return self._ahead.run(lambda: iter(self.loader), self._sender)


class _HasHappened:
    """An event that is always over: JAX itself keeps the memory that it still reads, and orders work on its arrays."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class _Putter:
    """Puts batches on their devices."""

    def __init__(self, placement: jax.Device | Sharding | None) -> None:
        self._placement = placement
        self._is_divided = isinstance(placement, Sharding) and len(placement.device_set) > 1
        self._by_axes: dict[int, Any] = {}

    def send(self, batch: Any) -> Sent:
        if isinstance(batch, Batch) and batch.packing is not None and self._is_divided:
            value = self._put_packed(batch)
        else:
            value = map_leaves(batch, self._put)
        return Sent(value, [], [batch], _HasHappened())

    def hand_over(self, sent: Sent) -> None:
        pass

    def _put_packed(self, batch: Batch) -> Batch:
        """Shard the rows. Arrays by sequence stay NumPy arrays, as the number of sequences differs between batches."""
        packing = batch.packing
        assert packing is not None
        parts = {"segment_ids": self._put(packing.segment_ids), "positions": self._put(packing.positions)}
        arrays = {key: self._put(array) if key in batch.lengths else array for key, array in batch.arrays.items()}
        return dataclasses.replace(batch, arrays=arrays, packing=dataclasses.replace(packing, **parts))

    def _put(self, leaf: Any) -> Any:
        array = numeric_array(leaf)
        if array is None:
            return leaf
        placement = self._placement_of(array.ndim)
        try:
            if isinstance(placement, Sharding) and not placement.is_fully_addressable:
                return jax.make_array_from_process_local_data(placement, array)  # type: ignore[no-untyped-call, unused-ignore]
            return jax.device_put(array, placement)
        except ValueError as error:
            raise ConfigError(
                f"an array {array.dtype}{list(array.shape)} cannot be sharded as {placement}: {error}",
                fix="use batches that the devices divide evenly, such as FixedCount(n) with drop_last=True, or Pack",
            ) from error

    def _placement_of(self, num_axes: int) -> Any:
        """Return the placement of an array; a sharding with more axes than the array has is cut to those."""
        placement = self._placement
        if not isinstance(placement, NamedSharding) or len(placement.spec) <= num_axes:
            return placement
        if num_axes not in self._by_axes:
            spec = PartitionSpec(*placement.spec[:num_axes])  # type: ignore[no-untyped-call, unused-ignore]
            self._by_axes[num_axes] = NamedSharding(placement.mesh, spec)
        return self._by_axes[num_axes]


def to_jax(loader: DataLoader, placement: jax.Device | Sharding | None = None, depth: int = 2) -> JaxLoader:
    """Return the loader with its batches as JAX arrays, put on the devices `depth` batches ahead of the consumer.

    The arrays, the lengths and the packing of a `Batch` become JAX arrays, and so do arrays in the result of a
    `collate`. JAX converts 64-bit numbers to 32-bit ones unless `jax_enable_x64` is set. Where a sharding divides
    packed batches, their arrays by sequence (`lengths`, `packing.rows`, `packing.starts`) stay NumPy arrays.

    With a sharding over several processes, the batch of each rank is its share of a global array; so all ranks need
    batches of the same shape: `FixedCount` with frames of a fixed number, or `Pack`.

    Args:
        loader: The loader to read. A loader in a process of several needs `rank=jax.process_index()` and
            `world_size=jax.process_count()`, unless the launcher sets them.
        placement: A device, a sharding such as `NamedSharding(mesh, PartitionSpec("batch"))` (axes that an array does
            not have are ignored), or None: JAX's default device.
        depth: How many batches are put on the devices before they are requested; each takes memory there.

    Raises:
        ConfigError: `placement` is neither a device nor a sharding.

    Examples:
        >>> import headrace as hr
        >>> with hr.DataLoader([{"data": [0.5, 1.0]}, {"data": [2.0]}], batch_size=2) as loader:
        ...     for batch in to_jax(loader):
        ...         print(batch["data"].sum(), batch.lengths["data"])
        3.5 [2 1]
    """
    return JaxLoader(loader, placement, depth)

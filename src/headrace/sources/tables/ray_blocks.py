"""The blocks of a materialized dataset of Ray Data, and how another process gets at them.

They are Arrow tables in Ray's object store, where each process of a node reads them without a copy. A process that is
not connected to the cluster, such as a worker process, connects when it needs its first block: what is carried to it
names the cluster and the blocks.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from headrace.errors import ConfigError, SourceError

_LOCATE_MS = 10_000  # for asking where all blocks of a dataset are


def import_ray() -> ModuleType:
    """Return the package ray, with its part for data.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        importlib.import_module("ray.data")
        return importlib.import_module("ray")
    except ImportError as error:
        raise ConfigError(
            f"a dataset of Ray Data needs the package ray: {error}", fix="pip install 'headrace[ray]'"
        ) from error


def is_materialized(dataset: Any) -> bool:
    """Tell whether a dataset of Ray Data has its rows in blocks already."""
    import_ray()
    return isinstance(dataset, importlib.import_module("ray.data.dataset").MaterializedDataset)


class Cluster:
    """The cluster that this process is connected to, for processes that are not.

    Raises:
        ConfigError: This process is a client of Ray ("ray://..."), whose objects others cannot be told of.
    """

    def __init__(self) -> None:
        ray = import_ray()
        client = importlib.import_module("ray.util.client")
        if client.ray.is_connected():
            raise ConfigError(
                "this process is connected to Ray as a client (ray://...), which has no object store",
                fix="run it on a node of the cluster, as a job (ray job submit)",
            )
        self._address = str(ray.get_runtime_context().gcs_address)

    def connect(self) -> ModuleType:
        """Return the package ray, connected to this cluster.

        Raises:
            SourceError: It cannot be reached from here, or this process is connected to another one.
        """
        ray = import_ray()
        what = f"a dataset of Ray Data is in the cluster at {self._address}"
        if not ray.is_initialized():
            try:
                ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError) as error:
                raise SourceError(
                    f"{what}, which this process cannot connect to: {error}",
                    fix="have workers on its nodes (executor='ray'), or start `ray` on this machine, or read it in "
                    "the trainer (num_workers=0)",
                ) from error
        elif (here := str(ray.get_runtime_context().gcs_address)) != self._address:
            raise SourceError(f"{what}, and this process is connected to {here}", fix="leave that one: ray.shutdown()")
        return ray


class Carried:
    """Something that refers to objects of Ray, which another process takes out when it is connected.

    Args:
        value: References, or a dataset.
    """

    def __init__(self, value: Any) -> None:
        self._cluster = Cluster()
        self._value, self._packed = value, b""

    def take(self) -> tuple[ModuleType, Any]:
        """Return ray, connected, and the value; the same one each time.

        Raises:
            SourceError: As for `Cluster.connect`.
        """
        ray = import_ray()
        if self._value is None or not ray.is_initialized():
            self._cluster.connect()
        if self._value is None:
            self._value = ray.cloudpickle.loads(self._packed)
        return ray, self._value

    def copy(self) -> Any:
        """Return a copy of the value.

        Raises:
            SourceError: As for `Cluster.connect`.
        """
        ray = self._cluster.connect()
        return ray.cloudpickle.loads(self._pack())

    def _pack(self) -> bytes:
        if not self._packed:
            self._packed = import_ray().cloudpickle.dumps(self._value)
        return self._packed

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self._cluster, self._pack())


def _unpack(cluster: Cluster, packed: bytes) -> Carried:
    """Return what was carried, without a connection."""
    carried = Carried.__new__(Carried)
    carried._cluster, carried._packed, carried._value = cluster, packed, None
    return carried


class Blocks:
    """The blocks of a materialized dataset, Arrow tables over the object store; the last one is held.

    Args:
        refs: References to them.
        hosts: See `data_hosts`, where that is known.
    """

    name = "dataset of Ray Data"

    def __init__(self, refs: Carried, hosts: Mapping[str, float] | None = None) -> None:
        self._refs, self._hosts = refs, hosts
        self._last: tuple[int, Any] = (-1, None)

    def __len__(self) -> int:
        return len(self._refs.take()[1])

    def __getitem__(self, piece: int) -> Any:
        """Return a block.

        Raises:
            SourceError: It is lost, or the cluster cannot be reached.
        """
        if self._last[0] != piece:
            ray, refs = self._refs.take()
            try:
                self._last = piece, ray.get(refs[piece])
            except ray.exceptions.RayError as error:
                raise SourceError(
                    f"Ray cannot give this block: {error}",
                    where=f"{self.name}, piece {piece}",
                    fix="the process that made the dataset, and the nodes that have its blocks, have to be there",
                ) from error
        return self._last[1]

    def data_hosts(self) -> Mapping[str, float]:
        """Return the nodes that have had blocks in their object stores when this was asked first, by ID -> bytes.

        Small blocks are on none. Each block that is read has a copy on the node of its reader as well.
        """
        if self._hosts is None:
            self._hosts = self._find_hosts()
        return self._hosts

    def _find_hosts(self) -> dict[str, float]:
        ray, refs = self._refs.take()
        hosts: dict[str, float] = {}
        try:
            locations = ray.experimental.get_object_locations(refs, timeout_ms=_LOCATE_MS)
        except (AttributeError, RuntimeError, ray.exceptions.RayError):  # then all nodes are alike
            return hosts
        for location in locations.values():
            nodes = location.get("node_ids") or ()
            for node in nodes:
                hosts[node] = hosts.get(node, 0.0) + (location.get("object_size") or 1) / len(nodes)
        return hosts

    def for_another_reader(self) -> Blocks:
        """Return the same blocks, of which another one is held."""
        return Blocks(self._refs, self._hosts)

    def close(self) -> None:
        """Let the last block go."""
        self._last = (-1, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Blocks, (self._refs,)

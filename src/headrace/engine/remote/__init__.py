"""Workers on other machines: they connect back to the trainer over TCP, and the stream stays the same.

This room decides how a worker on another machine is reached, and what both sides may believe of each other. What the
worker does is done by the executor of worker processes (`../process/executor.py`), there: a process of ours, the
*agent*, starts them on that machine and passes on what they say, so no user code runs where the connection is held.
Read `wire.py` first, which has the messages, then `executor.py` (the trainer's side) and `agent.py` (the other one).
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .executor import RemoteExecutor
    from .launcher import ConnectedWorkers, Invitation, Launched, Launcher, LocalLauncher
    from .mixed import MixedExecutor
    from .ray import RayExecutor, RayLauncher
    from .tls import Tls

__all__ = [
    "ConnectedWorkers",
    "Invitation",
    "Launched",
    "Launcher",
    "LocalLauncher",
    "MixedExecutor",
    "RayExecutor",
    "RayLauncher",
    "RemoteExecutor",
    "Tls",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "executor": ("RemoteExecutor",),
        "launcher": ("ConnectedWorkers", "Invitation", "Launched", "Launcher", "LocalLauncher"),
        "mixed": ("MixedExecutor",),
        "ray": ("RayExecutor", "RayLauncher"),
        "tls": ("Tls",),
    },
)

"""`DataLoader2` and its reading services: a graph of pipes, run here, in workers, or on many ranks.

This room decides which part of a graph runs where, when it is seeded, and where an iteration continues. It does not
know what a pipe does. Names and parameters are those of torchdata 0.7. Read `loader.py` first, then
`services/multi_processing.py`, `consumer.py` (the main process) and `replica.py` (a worker), and `dispatch/server.py`.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .error import PauseIteration
    from .interface import CheckpointableReadingServiceInterface, ReadingServiceInterface, WorkerInfo
    from .loader import DataLoader2, DataLoader2Iterator
    from .services.distributed import DistributedReadingService
    from .services.in_process import InProcessReadingService
    from .services.multi_processing import MultiProcessingReadingService, PrototypeMultiProcessingReadingService
    from .services.sequential import SequentialReadingService

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PauseIteration",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "SequentialReadingService",
    "WorkerInfo",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "services.distributed": ("DistributedReadingService",),
        "error": ("PauseIteration",),
        "services.in_process": ("InProcessReadingService",),
        "loader": ("DataLoader2", "DataLoader2Iterator"),
        "services.multi_processing": ("MultiProcessingReadingService", "PrototypeMultiProcessingReadingService"),
        "services.sequential": ("SequentialReadingService",),
        "interface": ("CheckpointableReadingServiceInterface", "ReadingServiceInterface", "WorkerInfo"),
    },
)

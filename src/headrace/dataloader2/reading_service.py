"""The reading services under the name of the module in which torchdata had them."""

from .distributed import DistributedReadingService as DistributedReadingService
from .in_process import InProcessReadingService as InProcessReadingService
from .mprs import MultiProcessingReadingService as MultiProcessingReadingService
from .mprs import PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService
from .sequential import SequentialReadingService as SequentialReadingService
from .services import CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface
from .services import ReadingServiceInterface as ReadingServiceInterface
from .services import WorkerInfo as WorkerInfo

"""The reading services, under the module name that torchdata has for them."""

from .interface import CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface
from .interface import ReadingServiceInterface as ReadingServiceInterface
from .interface import WorkerInfo as WorkerInfo
from .services.distributed import DistributedReadingService as DistributedReadingService
from .services.in_process import InProcessReadingService as InProcessReadingService
from .services.multi_processing import MultiProcessingReadingService as MultiProcessingReadingService
from .services.multi_processing import PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService
from .services.sequential import SequentialReadingService as SequentialReadingService

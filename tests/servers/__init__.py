"""Real servers on the loopback for tests, with faults that a test scripts: `FileServer` (HTTP), `S3Server` (moto).

Both are context managers: when they end, their threads, sockets and ports are gone.
"""

from .faults import Fault, Faults
from .http_files import FileServer
from .leaks import nothing_left
from .s3_store import S3Server, has_s3

__all__ = ["Fault", "Faults", "FileServer", "S3Server", "has_s3", "nothing_left"]

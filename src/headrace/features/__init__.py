"""Acoustic features of samples, in NumPy alone.

This room never knows where samples come from: arrays go in, arrays come out. Read `log_mel.py` first.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .log_mel import LogMel

__all__ = ["LogMel"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "log_mel": ("LogMel",),
    },
)

"""What a loader asks of errors."""

from __future__ import annotations


def is_named(error: BaseException) -> bool:
    """Tell whether the text of an error says which pipe raised it: that of a worker, or torch's."""
    return any("thrown by __iter__ of" in argument for argument in error.args if isinstance(argument, str))

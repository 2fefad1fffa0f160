"""Estimates the bytes of an item in transit."""

from __future__ import annotations


def estimate_bytes(item: object, depth: int = 4) -> int:
    """Return about how many bytes an item takes: arrays, tensors, bytes and texts, also in containers."""
    try:
        num_bytes = getattr(item, "nbytes", None)
    except Exception:  # noqa: BLE001 - user code; a sparse tensor of torch has none either
        num_bytes = None
    if isinstance(num_bytes, int):
        return num_bytes
    if isinstance(item, (bytes, bytearray, str)):
        return len(item)
    if depth == 0 or not isinstance(item, (dict, list, tuple, set, frozenset)):
        return 8
    elements = list(item.values()) if isinstance(item, dict) else list(item)
    if len(elements) > 16:  # long ones are much alike: a few stand for all
        return len(elements) * sum(estimate_bytes(element, depth - 1) for element in elements[:16]) // 16
    return 8 + sum(estimate_bytes(element, depth - 1) for element in elements)

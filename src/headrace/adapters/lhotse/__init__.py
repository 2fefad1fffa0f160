"""`LhotseDataLoader`, for samplers of lhotse that give whole batches, and `PlannedCutSampler`, a planning sampler.

It decides how a sampler is drawn from ahead of time and resumed. It knows nothing of Headrace's datasets, and only
`planned.py` needs lhotse. Read `loader.py` first.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .loader import LhotseDataLoader
    from .planned import PlannedCutSampler

__all__ = ["LhotseDataLoader", "PlannedCutSampler"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "loader": ("LhotseDataLoader",),
        "planned": ("PlannedCutSampler",),
    },
)

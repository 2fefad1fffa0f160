"""`LhotseDataLoader`, for samplers of lhotse that give whole batches, and `PlannedCutSampler`, which plans ours.

It decides how a sampler is drawn from ahead and resumed. It knows nothing of our datasets, and needs lhotse for
`planned.py` alone. Read `loader.py` first.
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

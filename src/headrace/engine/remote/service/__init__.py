"""One service for many trainings: it owns worker processes, and what they make is made once for all who want it.

This room decides which trainings may share results, how long these are kept, and what one trainer can do to another:
nothing. How a trainer and a worker of the service talk is that of all workers on other machines: to its
trainer, the service is a machine with agents. Invariants: results are shared among trainers whose recipes are equal to
the bit (`recipe.py`), and only while one of these trainers is connected; a result is kept as the bytes that its worker
wrote, and never unpickled here. Read `trainer.py` first, which is a trainer's side, then `server.py`, the other one,
and `pool.py`, which does the sharing.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .server import Service
    from .trainer import SharedService

__all__ = ["Service", "SharedService"]

__getattr__, __dir__ = export_lazily(__name__, {"server": ("Service",), "trainer": ("SharedService",)})

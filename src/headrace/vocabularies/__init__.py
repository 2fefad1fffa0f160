"""Vocabularies: from a text to class indices and back.

Each is an exact function of the text.
This room never knows where texts come from. Read `base.py` first.
"""

from typing import TYPE_CHECKING

from headrace.exports import export_lazily

if TYPE_CHECKING:
    from .base import Vocabulary, init_vocabulary
    from .ends import WithEnds, next_token_fields

__all__ = ["Vocabulary", "WithEnds", "init_vocabulary", "next_token_fields"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "base": ("Vocabulary", "init_vocabulary"),
        "ends": ("WithEnds", "next_token_fields"),
    },
)

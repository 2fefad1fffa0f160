"""What is known of every sequence without reading it: tags, lengths and locators, memory-mapped.

This room decides how that knowledge is stored, looked up, checked and digested, and when a stored copy is too old to
be used. It never opens the files of a corpus except to see whether they changed, and knows no format of theirs. Read
`corpus.py` first.
"""

from .corpus import CorpusIndex
from .join import AMBIGUOUS, MISSING, TagJoin, join_tags, open_or_join
from .policy import open_or_build
from .tags import GeneratedTags, PackedTags, Tags, chain_tags, pack_texts

__all__ = [
    "AMBIGUOUS",
    "MISSING",
    "CorpusIndex",
    "GeneratedTags",
    "PackedTags",
    "TagJoin",
    "Tags",
    "chain_tags",
    "join_tags",
    "open_or_build",
    "open_or_join",
    "pack_texts",
]

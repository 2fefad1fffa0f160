"""What Headrace no longer has: name -> what to use instead, for all packages and configs."""

from __future__ import annotations

DEPARTED = {
    "CutSource": "LhotseDataLoader with lhotse's samplers, or a map-style dataset over the CutSet with `get_seq_len`",
    "SamplingBytePairEncoding": "BytePairEncoding; to draw parts, read the text as bytes and encode it in a transform, "
    "by the dropout of a BPE model of tokenizers, or by sentencepiece",
}

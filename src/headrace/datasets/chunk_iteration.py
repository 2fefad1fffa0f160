"""Walking through an epoch by chunks of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.batching import Chunking, NumbersDict, plan_chunks, vary_chunking

if TYPE_CHECKING:
    from .base import Dataset

Chunk = tuple[int, NumbersDict, NumbersDict]


def iterate_chunks(dataset: Dataset, *, recurrent_net: bool, used_data_keys: Sequence[str] | None) -> Iterator[Chunk]:
    """Yield (seq_idx, start, end) for each chunk of the current epoch, see `Dataset.iterate_seqs`.

    A chunking function of the user is called once as `f(dataset=, seq_idx_start=, recurrent_net=, used_data_keys=)` and
    yields the same triples.
    """
    chunking = dataset.chunking if recurrent_net else None
    if chunking is not None and not isinstance(chunking, Chunking):
        yield from chunking(
            dataset=dataset, seq_idx_start=0, recurrent_net=recurrent_net, used_data_keys=used_data_keys
        )
        return
    seq_idx = 0
    while dataset.is_less_than_num_seqs(seq_idx):
        lengths = dataset.get_seq_length(seq_idx)
        if chunking is None:
            yield seq_idx, NumbersDict.constant_like(0, lengths), lengths
        else:
            varied = chunking
            if dataset.chunking_variance:
                varied = vary_chunking(chunking, dataset.chunking_variance, dataset.rnd_seq_drop.random())
            for start, end in plan_chunks(lengths, varied, dataset.min_chunk_size, used_data_keys):
                yield seq_idx, start, end
        seq_idx += 1

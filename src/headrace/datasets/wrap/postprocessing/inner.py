"""Reading the dataset inside a `PostprocessingDataset`, from its start on.

A function over a stream gets all of an epoch, in its order, with what the dataset says of the progress: that is the
epoch API, whatever class it is. It is positioned by its owner, or is a worker's own copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headrace.errors import takes_note

from ...base import Dataset
from ...parts import taken_away
from ...reading.reader import Features
from ...seq import DatasetSeq


def read_seqs(dataset: Dataset, first: int = 0, step: int = 1) -> Iterator[DatasetSeq]:
    """Yield every `step`-th sequence of the current epoch from a position on; their arrays may be written to.

    Where the dataset can jump, the others are not read.

    Raises:
        HeadraceError: Somebody else has started an epoch of it.
    """
    version, jumps = dataset.order_version, dataset.supports_jumps
    position, tag = first if jumps else 0, None
    while True:
        if dataset.order_version != version:
            raise taken_away(dataset, "a PostprocessingDataset")
        try:
            if not dataset.is_less_than_num_seqs(position):
                return
            dataset.load_seqs(position, position + 1)
            is_wanted = position >= first and (position - first) % step == 0
            seq = dataset.get_seq(position) if is_wanted else None
        except Exception as error:
            after = "" if tag is None else f", after sequence {tag!r}"
            takes_note(error, f"while sequence {position} of the inner dataset {dataset.name!r} was read{after}")
            raise
        if seq is not None:
            tag = seq.seq_tag
            texts = {key: dataset.get_data(position, key) for key in dataset.get_text_keys()}
            yield with_texts(seq, texts, are_own=dataset.gives_own)
        position += step if jumps else 1


def with_texts(seq: DatasetSeq, texts: Features, *, are_own: bool) -> DatasetSeq:
    """Return a sequence with its texts, whose arrays may be written to.

    Args:
        seq: The sequence.
        texts: The texts to add, by data key.
        are_own: Whether its arrays are the caller's: some datasets keep what they give.
    """
    if are_own and not texts:
        return seq
    features = {key: array if are_own else np.array(array) for key, array in seq.features.items()}
    return DatasetSeq.made_of(seq.seq_idx, {**features, **texts}, seq.seq_tag, seq.complete_frac, seq.corpus_idx)


def known_frac(dataset: Dataset, seq: DatasetSeq) -> float | None:
    """Return how much of the epoch of a dataset is done after a sequence, `None` if that can only be guessed."""
    if seq.complete_frac is not None:
        return seq.complete_frac
    return dataset.get_complete_frac(seq.seq_idx, allow_only_lr_suitable=True)


def gives_all_in_order(dataset: Dataset) -> bool:
    """Tell whether a dataset says the order of an epoch, and gives all sequences of it."""
    return dataset.get_corpus().knows_order() and not dataset.skips_failed


def without_workers(dataset: Dataset) -> Dataset:
    """Return what the workers of a dataset read, where its stream is the same without them; else the dataset itself."""
    while gives_all_in_order(dataset):
        workers = dataset.get_workers()
        if workers is None or not workers.is_same_without or workers.dataset in (None, dataset):
            break
        dataset = workers.dataset
    return dataset

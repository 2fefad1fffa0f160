"""Counts and the digest of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from headrace.cli.tally import EpochTally, derive_stream_digest, sum_tallies
from headrace.datasets import DatasetSeq


def tally_of(*seqs: tuple[str, Mapping[str, Any]], epoch: int = 1) -> EpochTally:
    tally = EpochTally(epoch)
    for seq_idx, (tag, features) in enumerate(seqs):
        tally.add(DatasetSeq(seq_idx, features, seq_tag=tag))
    return tally


A = np.array([[1, 2], [3, 4]], dtype=np.float32)


def test_frames_bytes_and_lengths_are_counted_by_key() -> None:
    tally = tally_of(("a", {"data": A, "n": np.array(3)}), ("b", {"data": A[:1], "n": np.array(4)}))
    tally.seconds = 2.0
    data = tally.to_json()
    assert (data["num_seqs"], data["bytes"], data["seqs_per_second"], data["bytes_per_second"]) == (2, 40, 1.0, 20.0)
    assert data["keys"]["data"] == {"frames": 3, "bytes": 24, "min_length": 1, "mean_length": 1.5, "max_length": 2}
    assert data["keys"]["n"] == {"frames": 2, "bytes": 16, "min_length": 1, "mean_length": 1.0, "max_length": 1}


def test_only_the_first_and_last_tags_are_kept() -> None:
    tally = tally_of(*((str(number), {"data": A}) for number in range(10)))
    assert tally.first_tags == ["0", "1", "2"]
    assert tally.last_tags == ["7", "8", "9"]


@pytest.mark.parametrize(
    "other",
    [
        [("b", {"data": A})],
        [("a", {"date": A})],
        [("a", {"data": A.astype(np.float64)})],
        [("a", {"data": A.reshape(4, 1)})],
        [("a", {"data": A + 1})],
        [("a", {"data": A, "more": A})],
        [("a", {"data": A}), ("a", {"data": A})],
        [],
    ],
    ids=["tag", "key", "dtype", "shape", "value", "key more", "sequence more", "nothing"],
)
def test_the_digest_tells_what_differs(other: list[tuple[str, Mapping[str, Any]]]) -> None:
    assert tally_of(("a", {"data": A})).digest != tally_of(*other).digest


def test_the_digest_depends_on_the_order_and_not_on_the_layout_in_memory() -> None:
    one, two = ("a", {"data": A}), ("b", {"data": A[:1]})
    assert tally_of(one, two).digest != tally_of(two, one).digest
    assert tally_of(one).digest == tally_of(("a", {"data": np.asfortranarray(A)})).digest
    assert tally_of(("ab", {"c": A})).digest != tally_of(("a", {"bc": A})).digest


def test_texts_and_empty_arrays_have_digests() -> None:
    words = [np.array(texts, dtype=object) for texts in (["a", "bc"], ["ab", "c"])]
    digests = {tally_of(("a", {"data": array})).digest for array in (*words, np.zeros((0, 2)), np.zeros((0, 3)))}
    assert len(digests) == 4


def test_the_digest_of_a_stream_depends_on_the_epoch_numbers() -> None:
    seq = ("a", {"data": A})
    assert derive_stream_digest([tally_of(seq)]) == derive_stream_digest([tally_of(seq)])
    assert derive_stream_digest([tally_of(seq)]) != derive_stream_digest([tally_of(seq, epoch=2)])


def test_sums_add_counts_bytes_and_seconds() -> None:
    tallies = [tally_of(("a", {"data": A})), tally_of(("b", {"data": A}), ("c", {"data": A}))]
    for tally in tallies:
        tally.seconds = 1.5
    whole = sum_tallies(tallies)
    assert (whole.num_seqs, whole.num_bytes, whole.seconds) == (3, 48, 3.0)

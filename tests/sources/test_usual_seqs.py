"""What writers take at a glance is written as what they look at closely."""

from contextlib import closing
from types import MappingProxyType

import numpy as np
import pytest

from headrace.errors import SourceError
from headrace.sources import (
    HDFSource,
    HDFWriter,
    MapSource,
    MemorySource,
    TarSource,
    TarWriter,
)

SEQS = [
    {"data": np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), "classes": np.arange(n, dtype=np.int32)}
    for n in (3, 0, 40, 1)
]
FORMS = {
    "other mapping": MappingProxyType,
    "other order": lambda seq: dict(reversed(seq.items())),
    "other byte order": lambda seq: {key: array.astype(array.dtype.newbyteorder()) for key, array in seq.items()},
    "other strides": lambda seq: {key: np.repeat(array, 2, axis=0)[::2] for key, array in seq.items()},
    "lists": lambda seq: {**seq, "classes": seq["classes"].tolist()},
    "sub-class": lambda seq: {key: array.view(np.memmap) for key, array in seq.items()},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("writer", "source", "name"),
    [(HDFWriter, HDFSource, "a.hdf"), (TarWriter, TarSource, "a.tar")],
)
def test_a_sequence_in_any_form_is_written_as_its_arrays_are(tmp_path, writer, source, name, form):
    with writer(tmp_path / name) as target:
        target.append("first", SEQS[0])
        for number, seq in enumerate(SEQS):
            target.append(f"usual-{number}", seq)
            target.append(f"other-{number}", FORMS[form](seq))
    found = source(tmp_path / name, index=None)
    for number, seq in enumerate(SEQS):
        for corpus_idx in (2 * number + 1, 2 * number + 2):
            arrays = found.read_seq(corpus_idx)
            assert {key: (a.dtype, a.tolist()) for key, a in arrays.items()} == {
                key: (a.dtype, a.tolist()) for key, a in seq.items()
            }
    found.close()


def test_classes_are_looked_at_however_many_there_are(tmp_path):
    with HDFWriter(tmp_path / "a.hdf", labels={"classes": list("abc")}) as target:
        target.append("first", {"classes": np.array([0, 2], np.int32)})
        for size in (1, 32, 33, 100):
            with pytest.raises(SourceError, match="3 classes"):
                target.append("wrong", {"classes": np.full(size, 3, np.int32)})
            target.append(f"right-{size}", {"classes": np.full(size, 2, np.int32)})
    with closing(HDFSource(tmp_path / "a.hdf", index=None)) as found:
        assert len(found) == 5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", [MemorySource, MapSource])
@pytest.mark.parametrize("first", [0, 1])
def test_a_sequence_in_memory_may_have_any_form(source, form, first):
    given = [FORMS[form](seq) if number >= first else seq for number, seq in enumerate(SEQS)]
    if form == "lists" and not first:
        given[0] = SEQS[0]  # a list has no dtype to learn
    found = source(given)
    for number, seq in enumerate(SEQS):
        arrays = found.read_seq(number)
        assert {key: (a.dtype, a.tolist()) for key, a in arrays.items()} == {
            key: (a.dtype, a.tolist()) for key, a in seq.items()
        }

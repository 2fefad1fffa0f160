"""Reading all keys of a sequence at once, and sources that share what is known of one index."""

import numpy as np

from headrace.sources import HDFSource, HDFWriter

SEQS = [
    (f"seq-{i}", {"data": np.full((i + 1, 2), i, np.float32), "classes": np.arange(i, dtype=np.int32)})
    for i in range(4)
]


def written(writer):
    with writer:
        for tag, arrays in SEQS:
            writer.append(tag, arrays)
    return writer.path


def test_another_reader_shares_what_was_worked_out_and_has_files_of_its_own(tmp_path, monkeypatch):
    source = HDFSource(written(HDFWriter(tmp_path / "a.hdf")), index=None)
    source.read_seq(1)
    monkeypatch.setattr(HDFSource, "_prepare", None)  # nothing is worked out again
    other = source.for_another_reader()
    assert other.index is source.index
    assert other.specs == source.specs
    other.specs["more"] = source.specs["data"]
    assert "more" not in source.specs
    other.specs.pop("more")
    source.close()
    assert other.read(3, "data").tolist() == SEQS[3][1]["data"].tolist()
    other.close()
    assert source.read_slice(3, "data", 1, 3).tolist() == [[3, 3], [3, 3]]
    source.close()

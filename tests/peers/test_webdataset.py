"""What `TarWriter` writes is read by webdataset, and what webdataset writes is read by `TarSource`."""

import gc

import numpy as np
import pytest

from headrace.sources import TarSource, TarWriter

webdataset = pytest.importorskip("webdataset")

pytestmark = pytest.mark.extra


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves its archives open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_what_we_write_and_does_not_take_the_note_for_a_sequence(tmp_path):
    path = tmp_path / "shard.tar"
    text = np.frombuffer("größe".encode(), np.uint8)
    with TarWriter(path, as_text=["orth"]) as writer:
        for idx, tag in enumerate(["a/b", "x" * 200, "__c__/d", "ü.wav"]):
            writer.append(tag, {"data": np.full((idx, 3), idx, np.float32), "orth": text})
    seqs = list(webdataset.WebDataset(str(path), shardshuffle=False).decode())
    gc.collect()
    assert [seq["__key__"] for seq in seqs] == ["a/b", "x" * 200, "%5F_c__/d", "ü%2Ewav"]
    for idx, seq in enumerate(seqs):
        np.testing.assert_array_equal(seq["data.npy"], np.full((idx, 3), idx, np.float32))
        assert seq["orth.txt"] == "größe"


def test_we_read_what_webdataset_writes(tmp_path):
    path = tmp_path / "shard.tar"
    with webdataset.TarWriter(str(path)) as sink:
        for idx in range(5):
            array = np.full((idx, 2), idx, np.float32)
            sink.write({"__key__": f"s/{idx:04d}", "x.npy": array, "txt": "hallo", "cls": idx, "json": {"n": [idx]}})
    source = TarSource(path, fields={"data": "x.npy", "orth": "txt", "classes": "cls", "n": "json:n"})
    assert source.index.tags[:] == [f"s/{idx:04d}" for idx in range(5)]
    for idx in range(5):
        np.testing.assert_array_equal(source.read(idx, "data"), np.full((idx, 2), idx, np.float32))
        assert bytes(source.read(idx, "orth")) == b"hallo"
        assert source.read(idx, "classes").tolist() == idx
        assert source.read(idx, "n").tolist() == [idx]
    source.close()

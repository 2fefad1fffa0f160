"""What is special about Parquet: row groups are decoded on demand, and kept for some time."""

import io
import logging

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.specs import DataSpec
from headrace.testing import check_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

from headrace.sources import LogMel, ParquetSource, ParquetWriter  # noqa: E402 - after the check for pyarrow

pytestmark = pytest.mark.extra


@pytest.fixture
def path(tmp_path):
    """400 sequences in 100 row groups."""
    path = tmp_path / "t.parquet"
    with ParquetWriter(path, rows_per_group=4) as writer:
        for i in range(400):
            writer.append(f"s{i}", {"data": np.full((i % 7, 3), i, np.float32), "classes": np.arange(i % 3)})
    return path


class _Counted:
    """Counts which columns of which row groups are decoded."""

    def __init__(self, monkeypatch):
        self.calls = []
        decode = pq.ParquetFile.read_row_group

        def read_row_group(file, group, columns=None, **options):
            self.calls.append((group, *columns))
            return decode(file, group, columns=columns, **options)

        monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)


def test_the_cache_is_bounded_and_changes_nothing(path, monkeypatch):
    wide, narrow = ParquetSource(path), ParquetSource(path, cache_bytes=0)
    counted = _Counted(monkeypatch)
    order = np.random.default_rng(0).permutation(400)[:60]
    for i in order.tolist():
        for key in ("data", "classes"):
            assert wide.read(i, key).tobytes() == narrow.read(i, key).tobytes()
    assert len(narrow._cache) == 2  # one group of each column
    assert len(counted.calls) > 2 * len({i // 4 for i in order.tolist()})
    wide.close()
    narrow.close()
    assert not wide._cache


def test_sequences_that_are_read_together_decode_no_group_twice(path, monkeypatch):
    source = ParquetSource(path, cache_bytes=0)
    counted = _Counted(monkeypatch)
    indices = np.random.default_rng(1).permutation(400)
    lengths = source.index.lengths("data")[indices]
    out = np.empty((int(lengths.sum()), 3), np.float32)
    source.read_rows(indices, "data", out)
    np.testing.assert_array_equal(out[:, 0], np.repeat(indices, lengths))
    assert sorted(counted.calls) == [(group, "data") for group in range(100)]
    source.close()


def test_an_order_that_does_not_suit_row_groups_is_told_of_once(path, caplog):
    source = ParquetSource(path, cache_bytes=0)
    order = np.random.default_rng(0).permutation(400).tolist()
    with caplog.at_level(logging.WARNING, "headrace.sources"):
        for i in order * 2:
            source.read(i, "data")
    assert [record.message.count("headrace convert") for record in caplog.records] == [1]
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace.sources"):
        for i in range(400):
            source.read(i, "classes")
    assert not caplog.records
    source.close()


def test_a_damaged_page_is_noticed_by_its_checksum(tmp_path):
    path = tmp_path / "t.parquet"
    with ParquetWriter(path, compression=None) as writer:
        writer.append("a", {"x": np.arange(50_000, dtype=np.uint32)})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(SourceError, match="cannot be read"):
        ParquetSource(path).read(0, "x")


def test_cache_bytes_is_a_number(path):
    with pytest.raises(ConfigError, match="cache_bytes must be at least 0"):
        ParquetSource(path, cache_bytes=-1)


def test_groups_end_by_bytes_where_no_number_of_rows_is_given(tmp_path):
    with ParquetWriter(tmp_path / "t", compression=None) as writer:
        for i in range(20):
            writer.append(str(i), {"x": np.zeros(50_000, np.float64)})
    metadata = pq.ParquetFile(tmp_path / "t").metadata
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [3] * 6 + [2]


# --- recordings ---


def _wav(num_samples, rate=8000, channels=1):
    soundfile = pytest.importorskip("soundfile")
    file = io.BytesIO()
    samples = np.linspace(-0.5, 0.5, num_samples * channels, dtype=np.float32).reshape(num_samples, channels)
    soundfile.write(file, samples, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


RECORDING = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _write(path, recordings):
    pq.write_table(pa.table({"audio": pa.array(recordings, RECORDING)}), path, row_group_size=2)
    return path


def test_recordings_are_decoded(tmp_path):
    path = _write(tmp_path / "t", [{"bytes": _wav(n), "path": None} for n in (5, 0, 30)])
    source = ParquetSource(path)
    assert source.specs == {"audio": DataSpec("float32", (1,), dim=1)}
    assert source.index.lengths("audio").tolist() == [5, 0, 30]
    np.testing.assert_array_equal(source.read(2, "audio")[:, 0], np.linspace(-0.5, 0.5, 30, dtype=np.float32))
    check_source(source)
    source.close()


def test_recordings_of_other_rates_and_channels_need_an_option(tmp_path):
    pytest.importorskip("soxr")
    path = _write(tmp_path / "t", [{"bytes": _wav(80), "path": None}, {"bytes": _wav(160, 16000), "path": None}])
    with pytest.raises(ConfigError, match="different sample rates: 8000, 16000"):
        ParquetSource(path)
    source = ParquetSource(path, fields={"data": {"field": "audio", "sample_rate": 8000}})
    assert source.index.lengths("data").tolist() == [80, 80]
    check_source(source)
    source.close()
    path = _write(tmp_path / "two", [{"bytes": _wav(80, channels=2), "path": None}])
    with pytest.raises(SourceError, match="has 2 channels"):
        ParquetSource(path).read(0, "audio")
    one = ParquetSource(path, fields={"data": {"field": "audio", "channel": 1}})
    assert one.read(0, "data")[-1] == 0.5
    one.close()


def test_recordings_become_features(tmp_path):
    samples = [np.linspace(-0.5, 0.5, n, dtype=np.float32) for n in (400, 0, 1000)]
    path = _write(tmp_path / "t", [{"bytes": _wav(len(part)), "path": None} for part in samples])
    source = ParquetSource(path, fields={"data": {"field": "audio", "features": {"num_mels": 20}}})
    assert source.specs == {"data": DataSpec("float32", (20,), dim=20)}
    np.testing.assert_array_equal(source.read(2, "data"), LogMel(sample_rate=8000, num_mels=20)(samples[2]))
    check_source(source)
    source.close()
    with pytest.raises(ConfigError, match="LogMel has no option 'num_mel'"):
        ParquetSource(path, fields={"data": {"field": "audio", "features": {"num_mel": 20}}})


def test_paths_of_recordings_do_not_lead_out_of_their_root(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a.wav").write_bytes(_wav(7))
    (tmp_path / "b.wav").write_bytes(_wav(8))
    inside = _write(tmp_path / "inside", [{"bytes": None, "path": "a.wav"}])
    outside = _write(tmp_path / "outside", [{"bytes": None, "path": "../b.wav"}])
    with pytest.raises(SourceError, match="has no bytes, only the path"):
        ParquetSource(inside)
    source = ParquetSource(inside, audio_root=tmp_path / "root")
    assert len(source.read(0, "audio")) == 7
    check_source(source)
    source.close()
    with pytest.raises(SourceError, match="outside its root"):
        ParquetSource(outside, audio_root=tmp_path / "root")
    with pytest.raises(SourceError, match="'audio' is null"):
        ParquetSource(_write(tmp_path / "null", [None]))
    with pytest.raises(SourceError, match="cannot be read"):
        ParquetSource(_write(tmp_path / "noise", [{"bytes": b"no audio", "path": None}]))


def test_columns_that_become_no_arrays_are_told_unless_fields_are_chosen(tmp_path, caplog):
    columns = {"n": [1], "words": [["a", "b"]], "about": [{"rate": 1}], "tag": ["a"]}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    ParquetSource(tmp_path / "t.parquet").close()
    (said,) = caplog.messages
    assert "left out: 'words', 'about';" in said
    ParquetSource(tmp_path / "t.parquet", fields={"n": "n"}).close()
    assert len(caplog.messages) == 1


def test_texts_that_most_likely_name_recordings_or_images_are_told(tmp_path, caplog):
    for name, column in (("a", "audio"), ("b", "image"), ("c", "text")):
        pq.write_table(pa.table({column: ["x/1.flac", "x/2.flac"], "n": [1, 2]}), tmp_path / f"{name}.parquet")
    for name in "abc":
        ParquetSource(tmp_path / f"{name}.parquet").close()
    assert ["AudioDataset" in caplog.messages[0], "ImageFolderSource" in caplog.messages[1]] == [True, True]
    assert len(caplog.messages) == 2
    ParquetSource(tmp_path / "a.parquet", fields={"audio": {"field": "audio", "vocab": "bytes"}}).close()
    assert len(caplog.messages) == 2

"""`Records`: a format is where the records are and what arrays they hold; the rest is the same for all."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.datasets import gathering
from headrace.errors import ConfigError, SourceError
from headrace.sources import RecordFormat, Records
from headrace.specs import DataSpec
from headrace.testing import check_source

HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Rows(RecordFormat):
    """Each record: the bytes of its tag, those of its numbers, the tag, the numbers."""

    dtype: str = "<i2"

    def scan(self, path: str) -> Iterator[tuple[str, int, int]]:
        data, start = Path(path).read_bytes(), 0
        while start < len(data):
            tag_bytes, num_bytes = HEAD.unpack_from(data, start)
            first = start + HEAD.size + tag_bytes
            yield data[start + HEAD.size : first].decode(), first, num_bytes
            start = first + num_bytes

    def decode(self, data: bytes, where: str) -> dict[str, Any]:
        if b"bad!" in data:
            raise SourceError("the record is damaged", where=where)
        return {"data": np.frombuffer(data, self.dtype), "size": len(data)}


def write(path: Path, **rows: Any) -> Path:
    pieces = []
    for tag, numbers in rows.items():
        data = numbers if isinstance(numbers, bytes) else np.asarray(numbers, "<i2").tobytes()
        pieces += [HEAD.pack(len(tag), len(data)), tag.encode(), data]
    path.write_bytes(b"".join(pieces))
    return path


def test_records_of_several_files_are_one_corpus(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", x=[1, 2, 3], y=[]), write(tmp_path / "b"), write(tmp_path / "c", z=[4])]
    source = Records(paths, Rows(), index=None)
    assert list(source.index.tags) == ["x", "y", "z"]
    assert source.specs["data"] == DataSpec("int16", sparse=True)
    assert {key: array.tolist() for key, array in source.read_seq(2).items()} == {"data": [4], "size": 2}
    check_source(source)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.read(0, "data").tolist() == [1, 2, 3]
    copy.close()
    with gathering(num_workers=2):
        assert Records(paths, Rows(), index=None).index.digest == source.index.digest
    source.close()


def test_the_kept_index_is_that_of_these_files_and_options(tmp_path: Path) -> None:
    path = write(tmp_path / "a", x=[1, 2, 3])
    first = Records(path, Rows(), index=None)
    first.index.save(tmp_path / "x.hrindex")
    assert Records(path, Rows(), index=tmp_path / "x.hrindex").read(0, "data").tolist() == [1, 2, 3]
    with pytest.raises(SourceError, match="was made for"):
        Records(path, Rows("<u2"), index=tmp_path / "x.hrindex")


def test_specs_choose_keys_and_labels_the_number_of_classes(tmp_path: Path) -> None:
    path = write(tmp_path / "a", x=[1, 0])
    specs = {"data": {"dtype": "int16", "sparse": True}}
    source = Records(path, Rows(), specs=specs, labels={"data": ["a", "b"]}, index=None)
    assert source.specs == {"data": DataSpec("int16", sparse=True, dim=2)}
    check_source(source)
    with pytest.raises(SourceError, match=r"(?s)dtype is int16, not int32.*a, tag 'x', data key 'data'"):
        Records(path, Rows(), specs={"data": {"dtype": "int32", "sparse": True}}, index=None)
    with pytest.raises(ConfigError, match="there are no records"):
        Records(write(tmp_path / "b"), Rows(), index=None)


@dataclass(frozen=True)
class Changing(Rows):
    def decode(self, data: bytes, where: str) -> dict[str, Any]:
        return {"data": np.frombuffer(data, "<i2" if len(data) < 4 else "<i4")}


def test_a_record_that_differs_or_is_damaged_or_truncated_names_file_and_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a", x=[1], y=[1, 2])
    with pytest.raises(SourceError, match=r"(?s)dtype is int32, not int16.*a, tag 'y', data key 'data'"):
        Records(path, Changing(), index=None)
    with pytest.raises(SourceError, match=r"(?s)damaged.*a, tag 'y'"):
        Records(write(path, x=[1], y=b"bad!"), Rows(), index=None)
    write(path, x=[1], y=[1, 2])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"(?s)ends in a record.*a, tag 'y'"):
        Records(path, Rows(), index=None)

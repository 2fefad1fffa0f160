"""Truncated, damaged and outdated index files."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SourceError
from headrace.files import FileStamp
from headrace.index import CorpusIndex, storage
from headrace.index.storage import IndexHeader, open_stored

PREAMBLE = struct.Struct("<8s3Q")


def write_small(path: Path, **changes: object) -> Path:
    columns: dict[str, object] = {"tags": ["a", "b", "ä", "b"], "lengths": {"data": [3, 1, 2, 9]}}
    CorpusIndex.from_columns(**(columns | changes)).save(path)  # type: ignore[arg-type]
    return path


def test_an_index_torn_at_any_byte_is_refused(tmp_path: Path) -> None:
    whole = write_small(tmp_path / "a.hrindex").read_bytes()
    truncated = tmp_path / "truncated.hrindex"
    for size in range(len(whole)):
        truncated.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=rf"truncated: it has (?:only )?{size} bytes"):
            CorpusIndex.open(truncated)
    truncated.write_bytes(whole + b"x")
    with pytest.raises(SourceError, match="truncated"):
        CorpusIndex.open(truncated)


def test_any_damaged_byte_of_the_header_is_seen_when_opened(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.hrindex")
    whole = path.read_bytes()
    _, _, header_size, _ = PREAMBLE.unpack_from(whole)
    for position in range(48 + header_size):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(SourceError, match=r"not an index|version|truncated|checksum"):
            CorpusIndex.open(path)


@given(data=st.data())
def test_any_damaged_byte_of_a_column_is_seen_when_opened(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = write_small(tmp_path_factory.mktemp("damaged") / "a.hrindex")
    whole = bytearray(path.read_bytes())
    header = read_header(path)
    first = len(whole) - 64 * sum(-(-column_bytes(entry.dtype, entry.size) // 64) for entry in header.columns)
    entry = data.draw(st.sampled_from(header.columns))
    position = data.draw(st.integers(0, column_bytes(entry.dtype, entry.size) - 1))
    whole[first + entry.offset + position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(SourceError, match="damaged"):
        CorpusIndex.open(path)
    with pytest.raises(SourceError, match="damaged"):
        CorpusIndex._of_stored(open_stored(path, known=bytes(whole[32:48]))).verify()


def test_the_columns_of_a_large_index_are_looked_at_if_somebody_wrote_to_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(storage, "_ALWAYS_CHECKED_BYTES", 0)
    path = write_small(tmp_path / "a.hrindex")
    whole, status = path.read_bytes(), path.stat()
    damaged = bytearray(whole)
    damaged[damaged.rindex(np.array([1, 2], "<i4").tobytes())] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match="its checksum is"):
        CorpusIndex.open(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(SourceError, match="its checksum is"):  # opened without a look, as nobody seems to have written
        CorpusIndex.open(path).verify()
    path.write_bytes(whole)
    CorpusIndex.open(shutil.copy(path, tmp_path / "copy.hrindex")).verify()


def column_bytes(dtype: str, size: int) -> int:
    return int(dtype[2:]) * size


def read_header(path: Path) -> IndexHeader:
    whole = path.read_bytes()
    _, _, header_size, _ = PREAMBLE.unpack_from(whole)
    return msgspec.json.decode(whole[48 : 48 + header_size], type=IndexHeader)


def rewrite_header(path: Path, header: IndexHeader) -> None:
    """Put in another header, with a right checksum: what a program that is not ours might write."""
    whole = path.read_bytes()
    _, version, header_size, _ = PREAMBLE.unpack_from(whole)
    columns = whole[-(-(48 + header_size) // 64) * 64 :]
    header_bytes = msgspec.json.encode(header)
    gap = bytes(-(48 + len(header_bytes)) % 64)
    total = 48 + len(header_bytes) + len(gap) + len(columns)
    preamble = PREAMBLE.pack(b"HRINDEX\n", version, len(header_bytes), total)
    path.write_bytes(preamble + xxhash.xxh3_128_digest(preamble + header_bytes) + header_bytes + gap + columns)


def test_a_header_that_does_not_fit_its_columns_is_refused(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.hrindex")
    header = read_header(path)
    rewrite_header(path, header)
    CorpusIndex.open(path).verify()  # the tool of this test is right
    replace = msgspec.structs.replace
    first, *rest = header.columns
    wrong = {
        "values of": replace(header, num_seqs=3),
        "has no column": replace(header, columns=tuple(rest)),
        "beyond the end": replace(header, columns=(replace(first, size=10**12), *rest)),
        "impossible column": replace(header, columns=(replace(first, dtype="|O"), *rest)),
        "impossible column .*offset=-64": replace(header, columns=(replace(first, offset=-64), *rest)),
        "impossible column .*size=-1": replace(header, columns=(replace(first, size=-1), *rest)),
        "values of <f8": replace(header, columns=(replace(first, dtype="<f8"), *rest)),
    }
    for message, other in wrong.items():
        rewrite_header(path, other)
        with pytest.raises(SourceError, match=message):
            CorpusIndex.open(path)


def test_verify_sees_a_wrong_digest_and_count(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.hrindex")
    header = read_header(path)
    rewrite_header(path, msgspec.structs.replace(header, digest="0" * 32))
    with pytest.raises(SourceError, match="digest over tags and lengths is"):
        CorpusIndex.open(path).verify()
    rewrite_header(path, msgspec.structs.replace(header, num_duplicates=0))
    with pytest.raises(SourceError, match="1 tags are repeated, not 0"):
        CorpusIndex.open(path).verify()


def test_another_version_and_another_file_are_told_apart(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.hrindex")
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + struct.pack("<Q", 99) + whole[16:])
    with pytest.raises(SourceError, match=r"format version 99, this Headrace reads version 2(.|\n)*--refresh"):
        CorpusIndex.open(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    with pytest.raises(SourceError, match="not an index"):
        CorpusIndex.open(path)


def test_a_missing_index_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"does not exist(.|\n)*headrace index FILES"):
        CorpusIndex.open(tmp_path / "a.hrindex")
    with pytest.raises(SourceError, match="not a regular file"):
        CorpusIndex.open(tmp_path)


def test_a_changed_file_is_refused_with_what_changed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(b"abc")
    stat = data.stat()
    path = write_small(tmp_path / "a.hrindex", files=[FileStamp.of(data)])
    assert CorpusIndex.open(path).files == (FileStamp.of(data),)
    for content, time, message in [
        (b"abcd", stat.st_mtime_ns, "size was 3 bytes and is 4"),
        (b"abc", 5, "modification time"),
        (b"abd", stat.st_mtime_ns, "digest"),
    ]:
        data.write_bytes(content)
        os.utime(data, ns=(time, time))
        with pytest.raises(SourceError, match=rf"changed since it was indexed.*{message}(.|\n)*--refresh"):
            CorpusIndex.open(path)
        with pytest.raises(SourceError, match=message):
            CorpusIndex.open(path, check_files=False).verify()
    data.unlink()
    with pytest.raises(SourceError, match="does not exist"):
        CorpusIndex.open(path)


def test_a_file_name_that_is_not_utf8_cannot_be_kept(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(name).touch()
    with pytest.raises(SourceError, match=r"'\\udcff' cannot be kept in an index"):
        write_small(tmp_path / "a.hrindex", files=[FileStamp.of(name)])
    assert not (tmp_path / "a.hrindex").exists()


def test_a_corpus_and_its_index_move_together(tmp_path: Path) -> None:
    (tmp_path / "old/sub").mkdir(parents=True)
    (tmp_path / "old/sub/data").write_bytes(b"abc")
    write_small(tmp_path / "old/a.hrindex", files=[FileStamp.of(tmp_path / "old/sub/data")])
    shutil.move(tmp_path / "old", tmp_path / "new")
    opened = CorpusIndex.open(tmp_path / "new/a.hrindex")
    assert [stamp.path for stamp in opened.files] == [str(tmp_path / "new/sub/data")]


_SAVES_TOO_MUCH = """
import resource, signal, sys
from headrace.errors import SourceError
from headrace.index import CorpusIndex, GeneratedTags
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    CorpusIndex.from_columns(tags=GeneratedTags(100_000), lengths={"data": range(100_000)}).save(sys.argv[1])
except SourceError as error:
    print(error)
"""


def test_an_index_that_does_not_fit_on_the_disk_leaves_the_old_one(tmp_path: Path) -> None:
    path = write_small(tmp_path / "a.hrindex")
    command = [sys.executable, "-c", _SAVES_TOO_MUCH, str(path)]
    assert "File too large" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
    CorpusIndex.open(path).verify()
    assert os.listdir(tmp_path) == ["a.hrindex"]


@pytest.mark.parametrize("value", [-1, 4, 2**31 - 1])
def test_a_look_up_table_that_points_outside_gives_an_error_that_names_the_index(tmp_path: Path, value: int) -> None:
    path = tmp_path / "a.hrindex"
    index = CorpusIndex.from_columns(tags=["a", "b", "a", "d"], lengths={})
    index.save(path)
    data = path.read_bytes()
    table = np.array(index.tag_table.indices)
    assert data.count(table.tobytes()) == 1
    path.write_bytes(data.replace(table.tobytes(), np.full(4, value, table.dtype).tobytes()))
    seen_before = data[32:48]  # the checksum of its header: a worker does not look at the columns again
    damaged = CorpusIndex._of_stored(open_stored(path, known=seen_before))
    for ask in (lambda: damaged.find_tags(["b"]), lambda: damaged.tag_groups()):
        with pytest.raises(SourceError, match="of 4: the index is damaged") as caught:
            ask()
        assert caught.value.where == str(path)
        assert caught.value.fix is not None
        assert "headrace index --refresh" in caught.value.fix


def test_the_advice_fits_what_the_command_does_not_index(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"does not exist(.|\n)*source.index.save\(path\)"):
        CorpusIndex.open(tmp_path / "a.hrindex")
    path = write_small(tmp_path / "b.hrindex")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"truncated(.|\n)*or remove it, and call `source.index.save\(path\)`"):
        CorpusIndex.open(path)

"""An index that several processes gather part by part is that of one process, and so are its errors."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import wave
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from examples_of_laws import examples
from headrace.datasets import gathering
from headrace.datasets.workers import map_in_workers
from headrace.errors import ConfigError, SourceError
from headrace.index import CorpusIndex, corpus
from headrace.index.storage import open_stored
from headrace.sources.formats import FORMATS
from headrace.sources.shared import folder, lines, parts
from headrace.sources.shared.parts import map_parts

VOCAB = {"class": "Vocabulary", "labels": ["a", "b", "ä"], "unknown_label": None}
TEXTS = {"data": {"field": "text", "vocab": VOCAB}, "orth": {"field": "text", "vocab": "bytes"}}


def content(index: CorpusIndex) -> Any:
    columns = {name: index.locator(name).tolist() for name in ("line_start", "line_bytes")}
    return list(index.tags), index.digest, index.meta, columns


class Counting:
    """Workers in this process, which get what others would get, and count their parts."""

    def __init__(self) -> None:
        self.num_parts = 0

    def __call__(self, function: Callable[[Any], Any], parts: Sequence[Any], num_workers: int) -> Iterator[Any]:
        assert num_workers > 1
        function, parts = pickle.loads(pickle.dumps((function, list(parts))))
        for part in parts:
            self.num_parts += 1
            yield pickle.loads(pickle.dumps(function(part)))


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setattr(parts, "_offered", [found])
    return found


LINES = st.lists(st.sampled_from(["a b", "", "a", "ä b a", "\r", "b" + " a" * 9]), max_size=20)


@given(
    files=st.lists(LINES, min_size=1, max_size=3),
    size=st.integers(1, 30),
    ends=st.booleans(),
    bom=st.booleans(),
    tags=st.sampled_from(["number", "place"]),
    skip_empty=st.booleans(),
)
@examples(60)
def test_lines_are_found_wherever_stretches_end(
    tmp_path: Path,
    counting: Counting,
    monkeypatch: pytest.MonkeyPatch,
    files: list[list[str]],
    size: int,
    ends: bool,
    bom: bool,
    tags: Any,
    skip_empty: bool,
) -> None:
    monkeypatch.setattr(lines, "_STRETCH_BYTES", size)
    paths = []
    for number, own in enumerate(files):
        text = ("\ufeff" if bom else "") + "\n".join(own) + ("\n" if ends and own else "")
        path = tmp_path / f"{number}.txt"
        path.write_bytes(text.encode())
        paths.append(path)
    options: dict[str, Any] = {"fields": TEXTS, "tags": tags, "skip_empty": skip_empty, "index": None}
    expected = hr.TextSource(paths, **options)
    with gathering(num_workers=3):
        source = hr.TextSource(paths, **options)
    assert content(source.index) == content(expected.index)
    assert [source.read_text(i) for i in range(len(source))] == [expected.read_text(i) for i in range(len(expected))]


@given(st.lists(st.sampled_from(["a b", "", "ä"]), max_size=20), st.integers(1, 60), st.lists(st.booleans()))
@examples(30)
def test_objects_are_found_wherever_stretches_end(
    tmp_path: Path,
    counting: Counting,
    monkeypatch: pytest.MonkeyPatch,
    texts: list[str],
    size: int,
    blanks: list[bool],
) -> None:
    monkeypatch.setattr(lines, "_STRETCH_BYTES", size)
    path = tmp_path / "x.jsonl"
    rows = [json.dumps({"tag": f"t{i}", "text": text}) for i, text in enumerate(texts)]
    path.write_text("\n".join(row + ("\n" if i < len(blanks) and blanks[i] else "") for i, row in enumerate(rows)))
    expected = hr.JsonlSource(path, fields=TEXTS, tag_field="tag", index=None)
    with gathering(num_workers=3):
        found = hr.JsonlSource(path, fields=TEXTS, tag_field="tag", index=None)
    assert content(found.index) == content(expected.index)


def wav(path: Path, num_samples: int) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * num_samples))


def write_recordings(root: Path) -> Callable[[], Any]:
    pytest.importorskip("soundfile")
    for number in range(9):
        (root / f"{number % 2}").mkdir(exist_ok=True)
        wav(root / f"{number % 2}" / f"{number}.wav", 10 + number)
    return lambda: hr.AudioFolderSource(root, targets={"classes": "folder"}, index=None)


def write_images(root: Path) -> Callable[[], Any]:
    image = pytest.importorskip("PIL.Image")
    for number in range(9):
        image.fromarray(np.full((4 + number % 3, 5, 3), number, np.uint8)).save(root / f"{number}.png")
    return lambda: hr.ImageFolderSource(root, index=None)


@pytest.mark.parametrize("write", [write_recordings, write_images])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_files_of_a_folder_are_the_same_whoever_looks_at_them(
    tmp_path: Path,
    counting: Counting,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Path], Callable[[], Any]],
    is_damaged: bool,
) -> None:
    monkeypatch.setattr(folder, "_PART_ITEMS", 2)
    now = time.time()
    monkeypatch.setattr(corpus.time, "time", lambda: now)  # an index tells the second in which it was made
    opened = write(tmp_path)
    if is_damaged:
        max((path for path in tmp_path.rglob("*") if path.is_file()), key=str).write_bytes(b"x")

    def outcome(num_workers: int) -> Any:
        with gathering(num_workers=num_workers):
            try:
                index = opened().index
            except SourceError as error:
                return re.sub("name=[0-9]+", "", str(error))  # of the descriptor
        path = tmp_path / "x.hrindex"
        index.save(path)
        return path.read_bytes()

    expected = outcome(0)
    assert isinstance(expected, str) == is_damaged
    assert outcome(3) == expected
    assert counting.num_parts == 5


def test_an_error_names_the_line_as_one_process_does(
    tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_STRETCH_BYTES", 50)
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("a b\n" * 100)
    second.write_text("b a\n" * 60 + "a c\n" + "b\n" * 90)
    for workers in (counting, map_in_workers):
        monkeypatch.setattr(parts, "_offered", [workers])
        with gathering(num_workers=2), pytest.raises(SourceError) as info:
            hr.TextSource([first, second], fields=TEXTS, index=None)
        with pytest.raises(SourceError) as expected:
            hr.TextSource([first, second], fields=TEXTS, index=None)
        assert str(info.value) == str(expected.value)
        assert "b.txt, line 61" in str(info.value)


def test_numbers_whose_dtype_is_learnt_take_one_process(tmp_path: Path, counting: Counting) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n' * 9 + '{"a": 1.5}\n')
    with gathering(num_workers=4):
        source = hr.JsonlSource(path, index=None)
    assert source.specs["a"].dtype == "float32"
    assert not counting.num_parts


ARRAYS = st.one_of(
    st.just(np.zeros((2, 3), np.float32)),
    st.just(np.ones((0, 3), np.float32)),
    st.just(np.ones((1, 2), np.float32)),
    st.just(np.asfortranarray(np.ones((4, 3), np.float32))),
    st.just(np.ones(3, np.int16)),
)


@st.composite
def archives(draw: Any) -> list[list[dict[str, bytes]]]:
    """Draw members of the sequences of archives: extension -> bytes; mostly such as fit together."""
    usual = draw(ARRAYS)
    found = []
    for _ in range(draw(st.integers(1, 5))):
        own = []
        for _ in range(draw(st.integers(0, 3))):
            array = draw(ARRAYS) if draw(st.integers(0, 7)) == 0 else usual
            members = {"npy": _npy(array), "cls": str(draw(st.integers(-1, 9))).encode(), "txt": b"a " + draw(WORDS)}
            if draw(st.integers(0, 9)) == 0:
                members["more"] = b""
            if draw(st.integers(0, 9)) == 0:
                del members["cls"]
            own.append(members)
        found.append(own)
    return found


WORDS = st.sampled_from([b"b", b"c", "ä".encode(), b"\xff"])


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _index_or_error(make: Callable[[], Any], path: Path) -> Any:
    """Return all that is in the file of the index but when it was written; or what the error says."""
    try:
        source = make()
    except (SourceError, ConfigError) as error:
        return type(error), str(error)
    source.index.save(path)
    stored = open_stored(path)
    header = msgspec.json.encode(msgspec.structs.replace(stored.header, written_ns=0))
    return header, {name: column.tobytes() for name, column in stored.columns.items()}


@given(
    found=archives(),
    fields=st.sampled_from([None, {"text": {"field": "txt", "vocab": "chars"}, "array": "npy", "class": "cls"}]),
    missing=st.sampled_from(["error", "skip"]),
    num_workers=st.integers(2, 4),
)
@examples(150)
def test_archives_are_indexed_alike_by_any_number_of_processes(
    tmp_path: Path, counting: Counting, found: Any, fields: Any, missing: Any, num_workers: int
) -> None:
    paths = []
    for number, seqs in enumerate(found):
        paths.append(tmp_path / f"{number}.tar")
        with tarfile.open(paths[-1], "w") as archive:
            for i, members in enumerate(seqs):
                for ext, data in members.items():
                    info = tarfile.TarInfo(f"s{number}-{i}.{ext}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))

    def make() -> Any:
        return hr.TarSource(paths, fields=fields, missing=missing, index=None)

    expected = _index_or_error(make, tmp_path / "x")
    with gathering(num_workers=num_workers):
        assert _index_or_error(make, tmp_path / "x") == expected


@pytest.mark.extra
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["a", "b", "ä", None])), max_size=5),
        min_size=1,
        max_size=4,
    ),
    format_name=st.sampled_from(["arrow", "parquet"]),
    vocab=st.sampled_from(["bytes", "chars", None]),
    num_workers=st.integers(2, 4),
)
@examples(100)
def test_tables_are_indexed_alike_by_any_number_of_processes(
    tmp_path: Path, counting: Counting, rows: Any, format_name: str, vocab: Any, num_workers: int
) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    schema = pa.schema([("x", pa.list_(pa.list_(pa.float32()))), ("text", pa.string())])
    paths = []
    for number, own in enumerate(rows):
        paths.append(tmp_path / f"{number}.{format_name}")
        columns = {
            "x": [[[0.0] * (2 + (length == 3))] * length for length, _ in own],
            "text": [text for _, text in own],
        }
        table = pa.table(columns, schema)
        if format_name == "parquet":
            parquet.write_table(table, paths[-1], row_group_size=2)
        else:
            with pa.ipc.new_file(paths[-1], schema) as writer:
                writer.write_table(table, max_chunksize=2)
    source_class = hr.ParquetSource if format_name == "parquet" else hr.ArrowSource

    def make() -> Any:
        return source_class(paths, fields={"x": "x", "t": {"field": "text", "vocab": vocab}}, index=None)

    expected = _index_or_error(make, tmp_path / "index")
    with gathering(num_workers=num_workers):
        assert _index_or_error(make, tmp_path / "index") == expected


@pytest.mark.extra
@pytest.mark.parametrize("format_name", ["tar", "hdf", "arrow", "parquet"])
def test_worker_processes_gather_the_same_index_of_archives_and_tables(tmp_path: Path, format_name: str) -> None:
    if format_name in ("arrow", "parquet"):
        pytest.importorskip("pyarrow")
    entry = FORMATS[format_name]
    paths = [tmp_path / f"{number}.{format_name}" for number in range(4)]
    for number, path in enumerate(paths):
        with getattr(hr, entry.writer)(path) as writer:
            for i in range(20):
                writer.append(f"{number}-{i}", {"data": np.ones((i, 2), np.float32), "x": np.array([i])})
    source_class = getattr(hr, entry.source)
    told: list[int] = []
    with gathering(num_workers=2, tell=lambda done, total: told.append(total - done)):
        found = _index_or_error(lambda: source_class(paths, index=None), tmp_path / "index")
    assert found == _index_or_error(lambda: source_class(paths, index=None), tmp_path / "index")
    assert told[-1] == 0


def test_small_corpora_start_no_process_by_themselves(tmp_path: Path, counting: Counting) -> None:
    path = tmp_path / "x.txt"
    path.write_text("b\na\n" * 50)
    hr.TextSource(path, fields=TEXTS, index=None)
    assert not counting.num_parts


def test_a_worker_starts_none_of_its_own() -> None:
    assert list(map_in_workers(_nested, [1, 2], 2)) == [[1, 2], [2, 3]]


def _nested(part: int) -> list[int]:
    with gathering(num_workers=2):
        return list(map_parts(abs, [part, part + 1], num_workers=2))


_SLOW = """
    import sys, time
    import headrace as hr
    from headrace.sources.shared import lines
    from headrace.vocabularies.labels import LabelVocabulary
    from headrace.datasets import gathering
    lines._STRETCH_BYTES = 100

    class Slow(LabelVocabulary):
        def encode(self, text):
            open(sys.argv[2], "a").write("x")
            time.sleep(0.05)
            return super().encode(text)

    fields = {"data": {"field": "text", "vocab": Slow(labels=["a"], unknown_label=None)}}
    with gathering(num_workers=2):
        hr.SourceDataset({"class": "TextSource", "files": sys.argv[1], "fields": fields, "index": "auto"})
"""


def test_an_interrupt_ends_it_at_once_and_leaves_nothing(
    tmp_path: Path, wait_until: Callable[[Callable[[], bool], str], None]
) -> None:
    text, begun = tmp_path / "x.txt", tmp_path / "begun"
    text.write_text("a a a\n" * 20_000)
    begun.touch()
    cache = tmp_path / "cache"
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_SLOW), str(text), str(begun)],
        env={**os.environ, "HEADRACE_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    wait_until(lambda: bool(begun.stat().st_size) or process.poll() is not None, "nobody begins")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)  # workers have its stderr, so this waits for the last of them
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert not list(cache.rglob("*.hrindex"))

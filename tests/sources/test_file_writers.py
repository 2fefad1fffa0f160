"""What all writers of files do alike: the target appears whole or not at all, and never takes what was there before."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from headrace.errors import ConfigError, SourceError
from headrace.sources import (
    ArrowSource,
    ArrowWriter,
    HDFSource,
    HDFWriter,
    ParquetSource,
    ParquetWriter,
    Source,
    TarSource,
    TarWriter,
    Writer,
)

SEQ = {"data": np.ones((3, 4), np.float32), "classes": np.arange(3, dtype=np.int32)}


class Kind(NamedTuple):
    write: Callable[..., Writer]
    read: Callable[[Path], Source]
    suffix: str

    def path(self, folder: Path, name: str = "corpus") -> Path:
        return folder / f"{name}{self.suffix}"


def _kind(writer: Any, source: Any, suffix: str, **options: Any) -> Any:
    return pytest.param(Kind(writer, partial(source, index=None), suffix), id=suffix[1:], **options)


NEEDS_ARROW = {"marks": [pytest.mark.extra, pytest.mark.skipif(not find_spec("pyarrow"), reason="needs pyarrow")]}


@pytest.fixture(
    params=[
        _kind(HDFWriter, HDFSource, ".hdf"),
        _kind(TarWriter, TarSource, ".tar"),
        _kind(ArrowWriter, ArrowSource, ".arrow", **NEEDS_ARROW),
        _kind(ParquetWriter, ParquetSource, ".parquet", **NEEDS_ARROW),
    ]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


REFUSED = {
    "a key is missing": {"data": SEQ["data"]},
    "a key is new": {**SEQ, "more": np.ones(1)},
    "no key": {},
    "another dtype": {**SEQ, "data": np.ones((3, 4))},
    "another frame": {**SEQ, "data": np.ones((3, 5), np.float32)},
    "an axis more": {**SEQ, "classes": np.ones((3, 1), np.int32)},
    "text": {**SEQ, "classes": np.array(["x"])},
    "objects": {**SEQ, "classes": np.array([None])},
    "a class too high": {**SEQ, "classes": np.array([0, 9], np.int32)},
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_sequence_that_does_not_fit_is_refused_and_leaves_no_trace(kind, tmp_path, case):
    with kind.write(kind.path(tmp_path), labels={"classes": ["x"] * 9}) as writer:
        writer.append("first", SEQ)
        with pytest.raises(SourceError) as caught:
            writer.append("second", REFUSED[case])
        assert "second" in caught.value.where
        writer.append("third", SEQ)
        assert writer.num_seqs == 2
    source = kind.read(kind.path(tmp_path))
    assert list(source.index.tags) == ["first", "third"]
    assert source.read(1, "data").tolist() == SEQ["data"].tolist()
    source.close()


def test_an_existing_file_is_refused_unless_it_may_be_replaced(kind, tmp_path):
    path = kind.path(tmp_path)
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists"):
        kind.write(path)
    with kind.write(path, overwrite=True) as writer:
        writer.append("a", SEQ)
        assert path.read_text() == "precious"
    assert kind.read(path).tag(0) == "a"


def test_a_file_that_may_be_replaced_stays_if_the_writer_is_aborted(kind, tmp_path):
    path = kind.path(tmp_path)
    path.write_text("precious")
    with pytest.raises(ZeroDivisionError), kind.write(path, overwrite=True) as writer:  # noqa: PT012
        writer.append("a", SEQ)
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "precious"
    with pytest.raises(ConfigError, match="the writer is closed"):
        writer.append("a", SEQ)


def test_a_file_that_came_into_being_meanwhile_is_not_replaced(kind, tmp_path):
    path = kind.path(tmp_path)
    writer = kind.write(path)
    writer.append("a", SEQ)
    path.write_text("precious")
    with pytest.raises(ConfigError, match="exists"):
        writer.close()
    assert path.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_refused(kind, tmp_path):
    with pytest.raises(SourceError, match="No such file or directory"):
        kind.write(kind.path(tmp_path / "nowhere"))


def test_nothing_is_seen_before_close_and_nothing_is_left_after_abort_or_an_exception(kind, tmp_path):
    path = kind.path(tmp_path, "aborted")
    writer = kind.write(path)
    writer.append("a", SEQ)
    assert not path.exists()
    writer.abort()
    writer.close()

    def fail():
        with kind.write(kind.path(tmp_path, "failed")) as writer:
            writer.append("a", SEQ)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_closing_twice_is_harmless_and_a_closed_writer_takes_nothing_more(kind, tmp_path):
    writer = kind.write(kind.path(tmp_path))
    writer.append("a", SEQ)
    for end in (writer.close, writer.close, writer.abort):
        end()
    with pytest.raises(ConfigError, match="closed"):
        writer.append("b", SEQ)
    assert len(kind.read(kind.path(tmp_path))) == 1


def test_a_refused_sequence_leaves_the_writer_as_it_was(kind, tmp_path):
    with kind.write(kind.path(tmp_path)) as writer:
        writer.append("a", SEQ)
        wide = {key: array[:, None] for key, array in SEQ.items()}
        for tag, seq in (("b", wide), ("b", {}), ("b", {"other": SEQ["data"]}), (3, SEQ)):
            with pytest.raises(SourceError):
                writer.append(tag, seq)
        writer.append("c", SEQ)
    assert list(kind.read(kind.path(tmp_path)).index.tags) == ["a", "c"]


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_full_while_appending_aborts_with_an_error(kind, tmp_path):
    path = kind.path(tmp_path)
    writer = kind.write(path)

    def append_much():
        for idx in range(100):
            writer.append(f"{idx}", {"data": np.random.default_rng(idx).random(10_000)})

    with pytest.raises(SourceError, match="File too large") as caught:
        append_much()
    assert path.name in caught.value.where
    with pytest.raises(ConfigError, match="closed"):
        writer.append("more", {"data": np.ones(1)})
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_is_forgotten_leaves_nothing_and_says_so(kind, tmp_path):
    with pytest.warns(ResourceWarning, match="neither closed nor aborted"):
        kind.write(kind.path(tmp_path)).append("a", SEQ)
    gc.collect()
    assert list(tmp_path.iterdir()) == []

"""What objects say of themselves: a line and some HTML, without work, whatever their names and their state."""

from __future__ import annotations

import html.parser
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from headrace.pipes.iter import IterableWrapper
from headrace.show.card import Card, describe_lengths, sparkline

HOSTILE = "<script>alert('x')</script>&\"<b>"


class Strict(html.parser.HTMLParser):
    """Remembers the tags that are open, and those that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(text: str) -> None:
    parser = Strict()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert parser.seen <= {"div", "b", "table", "tr", "td", "th", "span"}
    assert len(text) < 20_000


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    path = str(tmp_path / f"{HOSTILE.replace('/', '')}.hdf")
    with hr.HDFWriter(path) as writer:
        for number in range(30):
            writer.append(f"{HOSTILE}{number}", {"data": np.zeros((number + 1, 2), np.float32)})
    return path


class Stream:
    def __iter__(self):
        return iter([{"data": np.zeros(2)}])


def double(seq):
    return seq


MAKERS = {
    "source": hr.open_source,
    "index": lambda path: hr.open_source(path).index,
    "map_source": lambda path: hr.MapSource([{"data": np.zeros(3)}] * 4),
    "memory_source": lambda path: hr.MemorySource([{"data": np.zeros((3, 1))}] * 4),
    "hdf_dataset": lambda path: hr.HDFDataset([path], name=HOSTILE),
    "sub_epochs": lambda path: hr.HDFDataset([path], seq_ordering="laplace:3", partition_epoch=4),
    "static": lambda path: hr.StaticDataset([{"data": np.zeros((2, 1), np.float32)}]),
    "map_dataset": lambda path: hr.MapDataset([{"data": np.zeros((2, 1), np.float32)}]),
    "multi_proc": lambda path: hr.MultiProcDataset(hr.HDFDataset([path]), 2, 4),
    "postprocessing": lambda path: hr.PostprocessingDataset(dataset=hr.HDFDataset([path]), map_seq=double),
    "loader": lambda path: hr.DataLoader(hr.HDFDataset([path], name=HOSTILE), batching=hr.FrameBudget(50)),
    "items": lambda path: hr.DataLoader([1, 2, 3], batch_size=2),
    "stream": lambda path: hr.DataLoader(Stream(), batch_size=1),
    "dataloader2": lambda path: hr.DataLoader2(IterableWrapper([1, 2])),
    "lhotse": lambda path: hr.LhotseDataLoader({}, [[1], [2]], num_workers=0),
    "counts": lambda path: hr.DataLoader(hr.HDFDataset([path]), batching=hr.FrameBudget(50)).count(1),
    "shapes": lambda path: hr.DataLoader(hr.HDFDataset([path]), batching=hr.FrameBudget(50)).batch_shapes(),
    "file_cache": lambda path: hr.FileCache(cache_directory=os.path.join(os.path.dirname(path), HOSTILE[:8])),
    "bytes": lambda path: hr.init_vocabulary({"class": "Utf8ByteTargets"}),
    "labels": lambda path: hr.init_vocabulary({"labels": [HOSTILE, "\n"], "unknown_label": None}),
    "with_ends": lambda path: hr.WithEnds("bytes", bos=HOSTILE),
    "progress": lambda path: hr.progress(hr.DataLoader([1, 2, 3], batch_size=2)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_line_and_html_of_everything(name: str, corpus: str) -> None:
    shown = MAKERS[name](corpus)
    line = repr(shown)
    assert "\n" not in line
    assert len(line) < 600
    assert " object at 0x" not in line
    assert "cannot be shown" not in line
    check_html(shown._repr_html_())
    if hasattr(shown, "close"):
        shown.close()
        assert repr(shown)


def test_a_batch_and_an_epoch_in_the_middle_show_where_they_are(corpus: str) -> None:
    dataset = hr.HDFDataset([corpus], seq_ordering="random", partition_epoch=2)
    with hr.DataLoader(dataset, batching=hr.FrameBudget(50)) as loader:
        batch = next(iter(loader))
        check_html(batch._repr_html_())
        assert "batch 0, step 0 of epoch 1" in batch._repr_html_()
        assert "epoch 1, batch 1" in loader._repr_html_()
    dataset.init_seq_order(epoch=3)
    assert "epoch 3" in repr(dataset)
    assert "order random in 2 sub-epochs" in repr(dataset)


def test_the_histogram_of_lengths_is_shown_where_they_are_known(corpus: str) -> None:
    source = hr.open_source(corpus)
    assert sparkline(source.index.lengths("data")) in repr(source)
    assert "1 to 30, median 15" in source._repr_html_()
    assert "30 sequences" in repr(source)
    assert f"{os.path.basename(corpus)[-10:]} (" in repr(source)


def test_showing_reads_nothing_and_builds_no_index() -> None:
    class Items:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            raise AssertionError("an item was read")

        def get_seq_len(self, index):
            raise AssertionError("a length was asked for")

        def get_seq_tag(self, index):
            raise AssertionError("a tag was asked for")

    source = hr.MapSource(Items(), specs={"data": hr.DataSpec("float32")})
    assert "data: float32[T]" in repr(source)
    source._repr_html_()


def test_an_object_that_is_half_made_can_be_shown() -> None:
    for cls in (hr.HDFDataset, hr.MapSource, hr.CorpusIndex, hr.MultiProcDataset):
        made = cls.__new__(cls)
        assert cls.__name__ in repr(made)
        check_html(made._repr_html_())


@given(
    title=st.text(max_size=40),
    facts=st.lists(st.tuples(st.text(max_size=20), st.text(max_size=300)), max_size=4),
    keys=st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=12),
    lengths=st.lists(st.integers(0, 2**40), max_size=40),
)
@settings(max_examples=60)
def test_any_card_is_one_line_and_sound_html(title, facts, keys, lengths) -> None:
    card = Card(title, facts, keys, dict.fromkeys(list(keys)[:1], np.array(lengths, np.int64)), [Card(title, facts)])
    check_html(card.html())
    assert len(card.line()) <= 40 + 4 + 64 * 4 + 64 * 7 + 30
    if lengths:
        assert len(sparkline(np.array(lengths))) <= 16
        assert str(max(lengths)) in describe_lengths(np.array(lengths)).replace(",", "")

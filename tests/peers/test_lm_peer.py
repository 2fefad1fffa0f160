"""`LmDataset` against the documented one: the same sequences, tags, dtypes and orders, from the same files."""

import gc
import gzip
import io
import json
import warnings
from contextlib import redirect_stdout

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.datasets import LmDataset

pytest.importorskip("returnn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lm = pytest.importorskip("returnn.datasets.lm")

pytestmark = [pytest.mark.filterwarnings("ignore")]

WORDS = ["a", "b", "c", "[END]", "[UNKNOWN]", "[START]", "last", "ä"]
CHARS = [*WORDS[:6], " ", "ä", "l", "z"]
BLISS = """<?xml version="1.0"?>
<corpus name="c"><recording name="r1" audio="x.wav"><segment name="s1" start="0" end="1"><orth> a  b </orth></segment>
<segment name="s2" start="1" end="2"><orth></orth></segment></recording>
<recording name="r2" audio="x.wav"><segment name="s1"><orth>
c a &amp;
</orth></segment></recording></corpus>"""
SYMBOLS = [
    {"orth_symbols_file": "words.txt", "word_based": True},
    {"orth_symbols_map_file": "map.txt", "word_based": True},
    {"orth_symbols_map_file": "lines.txt", "word_based": True, "unknown_symbol": None},
    {"orth_symbols_file": "chars.txt"},
    {"orth_symbols_file": "chars.txt", "word_end_symbol": "[START]"},
    {"orth_symbols_file": "chars.txt", "orth_replace_map_file": "replace.json"},
    {"orth_symbols_file": "words.txt", "word_based": True, "orth_replace_map_file": "replace.json"},
    {"orth_vocab": {"class": "Utf8ByteTargets"}},
    {"orth_vocab": {"class": "Vocabulary", "vocab_file": "words.txt", "unknown_label": "[UNKNOWN]"}},
]
OPTIONS = [
    {},
    {"skip_empty_lines": False},
    {"seq_ordering": "sorted"},
    {"seq_ordering": "laplace:.3"},
    {"seq_ordering": "random", "partition_epoch": 2, "epoch": 3},
    {"seq_end_symbol": None, "dtype": "int64", "tag_prefix": "x"},
    {"add_delayed_seq_data": True},
]
LINES = st.lists(st.text(alphabet="abcäz \t\r\x0b\u2028", max_size=9), max_size=7)


@pytest.fixture(autouse=True)
def _files_that_the_peer_forgets():
    """Close them here, where a warning of it is ignored, and not in another test."""
    yield
    gc.collect()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "chars.txt").write_text("\n".join(CHARS) + "\n")
    (tmp_path / "map.txt").write_text(repr({word: i for i, word in enumerate(WORDS)}))
    (tmp_path / "lines.txt").write_text("".join(f"{word} {i}\n" for i, word in enumerate(WORDS)))
    (tmp_path / "replace.json").write_text(json.dumps({"b": "a a", "c": "", " ": "l"}))
    return tmp_path


def _everything(cls, epoch=1, **options):
    with redirect_stdout(io.StringIO()):
        dataset = cls(**options)
        dataset.initialize()
        dataset.init_seq_order(epoch=epoch)
        seqs = []
        while dataset.is_less_than_num_seqs(len(seqs)):
            seq_idx = len(seqs)
            dataset.load_seqs(seq_idx, seq_idx + 1)
            arrays = [dataset.get_data(seq_idx, key) for key in dataset.get_data_keys()]
            seqs.append((dataset.get_tag(seq_idx), [(array.dtype.name, array.tolist()) for array in arrays]))
        dataset.finish_epoch(free_resources=True)
    about = [dataset.get_data_keys(), dataset.get_target_list(), dataset.num_inputs]
    outputs = {key: tuple(shape) for key, shape in dataset.num_outputs.items()}
    return about, outputs, {key: list(labels) for key, labels in dataset.labels.items()}, seqs


@pytest.mark.parametrize("symbols", SYMBOLS, ids=[" ".join(map(str, symbols.values()))[:40] for symbols in SYMBOLS])
@given(texts=LINES, options=st.sampled_from(OPTIONS), is_compressed=st.booleans())
@examples(12)
def test_lines_of_text(folder, symbols, texts, options, is_compressed):
    content = "".join(f"{text}\n" for text in ["a b", *texts]).encode()
    name = "corpus.txt.gz" if is_compressed else "corpus.txt"
    (folder / name).write_bytes(gzip.compress(content) if is_compressed else content)
    options = {"auto_replace_unknown_symbol": "orth_vocab" not in symbols, **options}
    if options.get("add_delayed_seq_data") and ("orth_vocab" in symbols or not options.get("seq_end_symbol", True)):
        options = {}  # not offered there
    wanted = _everything(lm.LmDataset, corpus_file=name, **symbols, **options)
    assert _everything(LmDataset, corpus_file=name, **symbols, **options) == wanted


@pytest.mark.parametrize("name", ["corpus.xml", "corpus.xml.gz"])
@pytest.mark.parametrize("ordering", ["default", "sorted", "laplace:.2"])
def test_a_bliss_corpus(folder, name, ordering):
    (folder / name).write_bytes(gzip.compress(BLISS.encode()) if name.endswith(".gz") else BLISS.encode())
    for symbols in (SYMBOLS[0], SYMBOLS[3], SYMBOLS[7]):
        options = {**symbols, "auto_replace_unknown_symbol": "orth_vocab" not in symbols, "seq_ordering": ordering}
        found = _everything(LmDataset, corpus_file=name, **options)
        assert found == _everything(lm.LmDataset, corpus_file=name, **options)


@pytest.mark.parametrize("num_symbols", [128, 129, 256, 257, 40_000])
def test_the_dtype_of_a_vocabulary(folder, num_symbols):
    (folder / "large.txt").write_text("".join(f"w{i}\n" for i in range(num_symbols - 1)) + "[END]\n")
    (folder / "corpus.txt").write_text(f"w0 w{num_symbols - 2}\n")
    options = {"corpus_file": "corpus.txt", "orth_symbols_file": "large.txt", "word_based": True}
    found = _everything(LmDataset, **options)
    assert found == _everything(lm.LmDataset, **options)
    assert found[3][0][1][0][1] == [0, num_symbols - 2, num_symbols - 1]


def test_what_differs_on_purpose_is_a_last_line_without_a_line_end(folder):
    (folder / "corpus.txt").write_text("a\nb")
    options = {"corpus_file": "corpus.txt", **SYMBOLS[0]}
    assert len(_everything(LmDataset, **options)[3]) == 2
    assert len(_everything(lm.LmDataset, **options)[3]) == 1
    np.testing.assert_equal(_everything(LmDataset, **options)[3][1], ("line-1", [("int8", [1, 3])]))

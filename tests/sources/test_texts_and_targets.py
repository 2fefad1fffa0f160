"""Texts: never taken for labels in silence; with start and end, for any vocabulary; packed for a language model."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import headrace as hr
from headrace.batching.packed_layout import attention_mask, segment_bounds
from headrace.errors import ConfigError
from headrace.sources import JsonlSource, TextSource, init_vocabulary
from headrace.testing import check_source


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text, "word": text.split()[0]}) + "\n" for text in texts))
    return path


def test_texts_that_nobody_called_labels_are_refused_with_what_to_write(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"this is line {number}\n" for number in range(20)))
    with pytest.raises(ConfigError, match=r"(?s)'x' look like texts.*20 different ones in 20.*\"vocab\": \"bytes\""):
        TextSource(path, fields={"x": {"field": "text"}}, index=None)
    asked: dict[str, Any] = {"x": {"field": "text", "vocab": None}}
    assert TextSource(path, fields=asked, index=None).specs["x"].dim == 20
    assert TextSource(path, fields={"orth": "text"}, index=None).specs["orth"].dim == 256
    path.write_text("turn on the light\nturn off the light\n" * 10)  # labels of several words
    assert TextSource(path, fields={"x": "text"}, index=None).specs["x"].dim == 2
    path.write_text("".join(f"w{number}\n" for number in range(1001)))
    with pytest.raises(ConfigError, match="look like texts"):
        TextSource(path, fields={"x": "text"}, index=None)


@pytest.mark.parametrize("vocab", ["bytes", {"class": "Utf8ByteTargets"}, "characters"])
def test_targets_are_the_inputs_one_step_ahead(tmp_path: Path, vocab: Any) -> None:
    texts = ["ab c", "b" * 7, "a"]
    if vocab == "characters":
        (tmp_path / "chars.txt").write_text("a\nb\nc\n \n")
        vocab = {"class": "CharacterTargets", "vocab_file": str(tmp_path / "chars.txt"), "unknown_label": None}
    fields = hr.next_token_fields("text", vocab, eos="</s>", bos="<s>")
    source = JsonlSource(write_lines(tmp_path / "a.jsonl", texts), fields=fields, index=None)
    inner = init_vocabulary({"class": "Utf8ByteTargets"} if vocab == "bytes" else vocab)
    for corpus_idx, text in enumerate(texts):
        inputs, targets = source.read(corpus_idx, "data"), source.read(corpus_idx, "targets")
        np.testing.assert_array_equal(inputs[1:], inner.encode(text))
        np.testing.assert_array_equal(inputs[1:], targets[:-1])
        assert (inputs[0], targets[-1]) == (inner.dim, inner.dim + 1)
    assert source.labels["data"][-2:] == ["<s>", "</s>"]
    assert source.specs["data"] == source.specs["targets"]
    check_source(source)


def test_a_symbol_that_the_vocabulary_has_keeps_its_class_and_a_copy_encodes_alike() -> None:
    vocabulary = hr.WithEnds({"class": "Utf8ByteTargets"}, bos="A", eos="<eos>")
    assert vocabulary.encode("xy").tolist() == [65, 120, 121, 256]
    assert vocabulary.decode([65, 120, 121, 256]) == "xy"
    copy = pickle.loads(pickle.dumps(vocabulary))
    assert (copy.identity, copy.encode("xy").tolist()) == (vocabulary.identity, [65, 120, 121, 256])
    made = init_vocabulary({"class": "WithEnds", "vocab": "bytes", "eos": "<eos>"})
    assert made.identity != vocabulary.identity
    assert (made.dim, made.encode("x").tolist()) == (257, [120, 256])
    with pytest.raises(ConfigError, match="adds is 'start'"):
        hr.WithEnds("bytes", eos="x", adds="start")
    with pytest.raises(ConfigError, match=r"(?s)puts symbols around texts itself.*with_template=False"):
        hr.next_token_fields("text", {"class": "Utf8ByteTargets", "seq_postfix": [0]}, eos="</s>")


def test_a_language_model_from_a_folder_of_json_lines(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    texts = ["".join(rng.choice(list("abc "), int(size))) + "." for size in rng.integers(1, 30, 40)]
    texts = [f"a{text}" for text in texts]
    for number in range(4):
        write_lines(tmp_path / f"{number}.jsonl", texts[10 * number : 10 * number + 10])
    source = hr.open_source(tmp_path, fields=hr.next_token_fields("text", "bytes", eos="</s>"))
    with hr.DataLoader(source, batching=hr.Pack(row_tokens=64, num_rows=2), shuffle=True, seed=3) as loader:
        found = []
        for batch in loader:
            inputs, targets = batch["data"].reshape(-1), batch["targets"].reshape(-1)
            bounds = batch.cu_seqlens
            assert bounds[-1] == inputs.size
            segments = batch.segment_ids.reshape(-1)
            for start, stop in itertools.pairwise(bounds):
                if segments[start]:
                    assert inputs[start + 1 : stop].tolist() == targets[start : stop - 1].tolist()
                    assert (inputs[start], targets[stop - 1]) == (256, 256)
                    found.append(bytes(targets[start : stop - 1].tolist()).decode())
            assert batch.attention_mask(causal=True).shape == (*batch["data"].shape, batch["data"].shape[1])
    assert sorted(found) == sorted(texts)


@given(npst.arrays(np.int32, npst.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.integers(0, 3)))
def test_bounds_and_masks_say_what_the_segments_say(segment_ids: np.ndarray) -> None:
    bounds, mask = segment_bounds(segment_ids), attention_mask(segment_ids, causal=True)
    flat, tokens = segment_ids.ravel(), segment_ids.shape[1]
    begins = [i for i in range(flat.size) if i % tokens == 0 or flat[i] != flat[i - 1]]
    assert bounds.tolist() == [*begins, flat.size]
    for row, ids in enumerate(segment_ids):
        for a in range(tokens):
            for b in range(tokens):
                assert mask[row, a, b] == (b <= a and ids[a] == ids[b] > 0)
    np.testing.assert_array_equal(attention_mask(segment_ids), mask | mask.transpose(0, 2, 1))

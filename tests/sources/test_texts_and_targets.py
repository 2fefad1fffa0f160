"""Texts: never taken for labels in silence; with start and end, for any vocabulary; packed for a language model."""

from __future__ import annotations

import io
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import headrace as hr
from headrace.batching.packed_layout import attention_mask, segment_bounds
from headrace.errors import ConfigError, ResumeError
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


def _sentences() -> list[str]:
    words = ["low", "lower", "wide", "the", "zebra", "ran"]
    rng = np.random.default_rng(5)
    return [" ".join(rng.choice(words, int(size))) for size in rng.integers(1, 9, 60)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of lines, and a folder of a tokenizer that puts `<s>` and `</s>` around a text."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("texts")
    (path / "corpus.txt").write_text("".join(f"{text}\n" for text in _sentences()))
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=50, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_sentences(), trainer)
    template = {"single": "<s> $A </s>", "special_tokens": [("<s>", 1), ("</s>", 2)]}
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(**template)
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def _tokenizer(path: Path) -> Any:
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(path / "tokenizer.json"))


def _of_transformers(path: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"), **special, **options)


def _pieces(path: Path) -> str:
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    options = {"vocab_size": 26, "minloglevel": 2, "hard_vocab_limit": False}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(_sentences()), model_writer=model, **options)
    (path / "pieces.model").write_bytes(model.getvalue())
    return str(path / "pieces.model")


GIVEN: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: str(path / "tokenizer.json"),
    "folder": lambda path: path,
    "tokenizer": _tokenizer,
    "transformers": _of_transformers,
    "pieces": _pieces,
    "bytes": lambda _: "bytes",
    "chars": lambda _: "chars",
}


@pytest.mark.extra
@pytest.mark.parametrize("given", GIVEN)
def test_each_form_of_a_vocabulary_has_targets_one_step_ahead_also_in_workers(folder: Path, given: str) -> None:
    vocab = GIVEN[given](folder)
    fields = hr.next_token_fields("text", vocab, eos="</s>")
    source = TextSource(folder / "corpus.txt", fields=fields, index=None)
    eos = source.labels["data"].index("</s>")
    assert source.labels["data"] == source.labels["targets"]
    for corpus_idx, text in enumerate(_sentences()):
        inputs, targets = source.read(corpus_idx, "data"), source.read(corpus_idx, "targets")
        assert (inputs[0], targets[-1]) == (eos, eos)
        np.testing.assert_array_equal(inputs[1:], targets[:-1])
        if given == "chars":
            assert "".join(source.labels["data"][class_idx] for class_idx in targets[:-1]) == text
        else:
            assert fields["data"]["vocab"].decode(targets) == text
            assert eos not in targets[:-1]
    check_source(source)
    batches = []
    for num_workers in (0, 2):
        with hr.DataLoader(source, batching=hr.Pack(row_tokens=64, num_rows=2), num_workers=num_workers) as loader:
            batches.append([{key: batch[key].tolist() for key in batch} for batch in loader])
    assert batches[0] == batches[1]
    assert len(batches[0]) > 2


@pytest.mark.extra
@pytest.mark.parametrize("given", [given for given in GIVEN if given != "chars"])
def test_each_form_is_accepted_wherever_a_vocabulary_is(folder: Path, tmp_path: Path, given: str) -> None:
    vocab = GIVEN[given](folder)
    made = init_vocabulary(vocab)
    wanted = [made.encode(text).tolist() for text in _sentences()]
    rows = write_lines(tmp_path / "a.jsonl", _sentences())
    datasets = [
        hr.LmDataset(str(folder / "corpus.txt"), orth_vocab=vocab),
        hr.SourceDataset(TextSource(folder / "corpus.txt", vocab=vocab, index=None)),
        hr.SourceDataset(JsonlSource(rows, fields={"data": {"field": "text", "vocab": vocab}}, index=None)),
    ]
    for dataset in datasets:
        assert [seq.features["data"].tolist() for seq in dataset.epoch(1)] == wanted
    config = {"class": "LmDataset", "corpus_file": str(folder / "corpus.txt"), "orth_vocab": vocab}
    for num_workers in (0, 2):
        with hr.DataLoader(config, batching=hr.FixedCount(1), num_workers=num_workers) as loader:
            assert [batch["data"][0].tolist() for batch in loader] == wanted


@pytest.mark.extra
def test_a_tokenizer_that_was_loaded_says_its_special_tokens_and_stays_as_it_was_taken(folder: Path) -> None:
    given = _of_transformers(folder)
    vocabulary = init_vocabulary(given)
    text = "the lower zebra"
    assert vocabulary.encode(text).tolist() == given(text)["input_ids"]
    assert (vocabulary.bos_label_id, vocabulary.eos_label_id, vocabulary.unknown_label_id) == (1, 2, 0)
    fields = hr.next_token_fields("text", given)  # the end is its own
    assert fields["targets"]["vocab"].encode(text).tolist() == [*vocabulary.encode(text)[1:]]
    given(["a", "b" * 90], truncation=True, max_length=4)  # which it remembers
    assert init_vocabulary(given).identity == vocabulary.identity
    assert init_vocabulary(given).encode(text).tolist() == vocabulary.encode(text).tolist()
    given.add_tokens(["zebra"])
    assert init_vocabulary(given).identity != vocabulary.identity
    splits = _of_transformers(folder, split_special_tokens=True)
    for one in (init_vocabulary(splits), pickle.loads(pickle.dumps(init_vocabulary(splits)))):
        assert one.encode("a </s>").tolist() == splits("a </s>")["input_ids"] != vocabulary.encode("a </s>").tolist()
    assert init_vocabulary(splits).identity != vocabulary.identity


@pytest.mark.extra
def test_what_is_no_vocabulary_is_refused_with_what_is_accepted(folder: Path, tmp_path: Path) -> None:
    for vocab in ("bites", tmp_path / "words.txt", 3.5, object()):
        with pytest.raises(ConfigError, match=r"(?s)cannot be made from.*tokenizer\.json.*SentencePiece.*transformers"):
            init_vocabulary(vocab)
        with pytest.raises(ConfigError, match=r"(?s)cannot be read.*\"chars\".*tokenizer\.json.*transformers"):
            TextSource(folder / "corpus.txt", vocab=vocab, index=None)
    with pytest.raises(ConfigError, match=r"(?s)from 'chars'.*CharacterTargets"):
        hr.LmDataset(str(folder / "corpus.txt"), orth_vocab="chars")
    with pytest.raises(ConfigError, match="knows no symbol of the end"):
        hr.next_token_fields("text", "bytes")
    transformers = pytest.importorskip("transformers")
    slow = object.__new__(type("SlowTokenizer", (transformers.PreTrainedTokenizer,), {}))
    with pytest.raises(ConfigError, match=r"(?s)SlowTokenizer is a tokenizer in Python.*use_fast=True"):
        init_vocabulary(slow)
    tokenizer = _tokenizer(folder)
    tokenizer.model.dropout = 0.1
    with pytest.raises(ConfigError, match="without a seed"):
        init_vocabulary(tokenizer)
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.PreTokenizer.custom(object())
    with pytest.raises(ConfigError, match="cannot be saved as"):
        init_vocabulary(tokenizer)


def _swapped(labels: list[str], path: Path) -> Any:
    (path / "words.txt").write_text("".join(f"{label}\n" for label in labels))
    return {"class": "Vocabulary", "vocab_file": str(path / "words.txt"), "unknown_label": None}


def _text_source(path: Path, vocab: Any) -> Any:
    return TextSource(path / "corpus.txt", vocab=vocab, index=None)


def _json_source(path: Path, vocab: Any) -> Any:
    return JsonlSource(path / "a.jsonl", fields={"data": {"field": "text", "vocab": vocab}}, index=None)


def _lm(path: Path, vocab: Any) -> Any:
    return hr.LmDataset(str(path / "corpus.txt"), orth_vocab=init_vocabulary(vocab))


@pytest.mark.parametrize("make", [_text_source, _json_source, _lm])
def test_a_state_is_of_the_vocabulary_that_it_was_saved_with(tmp_path: Path, make: Callable[..., Any]) -> None:
    (tmp_path / "corpus.txt").write_text("a b\nb\nb a\na\n")
    write_lines(tmp_path / "a.jsonl", ["a b", "b", "b a", "a"])

    def loader(labels: list[str]) -> Any:
        return hr.DataLoader(make(tmp_path, _swapped(labels, tmp_path)), batching=hr.FixedCount(1), num_workers=0)

    with loader(["a", "b"]) as first:
        next(iter(first))
        state = first.state_dict()
    with loader(["a", "b"]) as same:
        same.load_state_dict(state)
        assert next(iter(same))["data"].tolist() == [[1]]
    with loader(["b", "a"]) as other, pytest.raises(ResumeError, match=r"(?s)another data.*same vocabularies"):
        other.load_state_dict(state)

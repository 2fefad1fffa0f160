"""Vocabularies against the documented ones: the same classes for the same texts."""

import io
import itertools
import random
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples_of_laws import examples
from headrace.sources import init_vocabulary

pytest.importorskip("returnn")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    vocabulary = pytest.importorskip("returnn.datasets.util.vocabulary")

pytestmark = [pytest.mark.filterwarnings("ignore")]

TEXTS = st.text(alphabet="ab c\t\n@\u2028é", max_size=20)
_NUMBERS = itertools.count()  # the documented class remembers files by name


def _both(**options):
    return init_vocabulary(options), vocabulary.Vocabulary.create_vocab(**options)


def _assert_same(ours, theirs, text):
    assert ours.encode(text).tolist() == list(theirs.get_seq(text))


@given(text=TEXTS, form=st.sampled_from(["lines", "dict"]), has_postfix=st.booleans(), single=st.booleans())
@examples(60)
def test_words(tmp_path, text, form, has_postfix, single):
    labels = ["a", "b", "UNK", "ab", "c a", "b", ""]
    path = tmp_path / form
    if form == "lines":
        path.write_text("".join(f"{label}\n" for label in labels))
    else:
        path.write_text("{'a': 0, 'b': 2, 'ab': 2, 'UNK': 1, 'c a': 3}")
    ours, theirs = _both(
        vocab_file=str(path),
        seq_postfix=[0, 1] if has_postfix else None,
        single_whitespace_split=single,
        eos_label="a",
    )
    _assert_same(ours, theirs, text)
    assert list(ours.labels) == list(theirs.labels)
    assert (ours.unknown_label_id, ours.eos_label_id) == (theirs.unknown_label_id, theirs.eos_label_id)
    classes = ours.encode(text)
    assert ours.decode(classes) == theirs.get_seq_labels(classes)


@given(text=TEXTS, has_postfix=st.booleans())
@examples(40)
def test_characters_and_bytes(text, has_postfix):
    postfix = [0] if has_postfix else None
    labels = {"labels": ["@", "a", "b", " ", "bc"], "vocab_file": None}
    for options in ({"class": "CharacterTargets", **labels}, {"class": "Utf8ByteTargets"}):
        ours, theirs = _both(seq_postfix=postfix, **options)
        _assert_same(ours, theirs, text)
        classes = ours.encode(text)
        assert ours.decode(classes) == theirs.get_seq_labels(classes)


@given(seed=st.integers(0, 2**32))
@examples(40)
def test_byte_pairs(tmp_path, seed):
    rng = random.Random(seed)
    version = rng.choice(["#version: 0.2\n", "#version: 0.1\n", ""])
    parts = [*"abcd", *(f"{letter}</w>" for letter in "abcd"), *([] if "0.2" in version else ["</w>"])]
    merges = []
    for _ in range(rng.randint(1, 15)):
        first, second = rng.choice([part for part in parts if not part.endswith("</w>")]), rng.choice(parts)
        merges.append(f"{first} {second}\n")
        parts.append(first + second)
    bare = sorted({part.replace("</w>", "") for part in parts} - {""})
    labels = [label for part in bare for label in (part, f"{part}@@") if rng.random() < 0.85]
    number = next(_NUMBERS)
    (tmp_path / f"codes{number}").write_text(version + "".join(merges))
    (tmp_path / f"labels{number}").write_text("".join(f"{label}\n" for label in [*labels, "UNK"]))
    ours, theirs = _both(
        **{"class": "BytePairEncoding"},
        vocab_file=str(tmp_path / f"labels{number}"),
        bpe_file=str(tmp_path / f"codes{number}"),
        unknown_label="UNK",
    )
    for _ in range(20):
        words = ["".join(rng.choices("abcdx", k=rng.randint(1, 7))) for _ in range(rng.randint(0, 3))]
        _assert_same(ours, theirs, " ".join(words))


@pytest.mark.parametrize("options", [{}, {"add_bos": True, "add_eos": True}, {"reverse": True, "add_eos": True}])
@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentence_pieces(tmp_path, options, model_type):
    sentencepiece = pytest.importorskip("sentencepiece")
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(["the", "lower", "newest", "zebra", "ran"], size=5)) for _ in range(100)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=24,
        model_type=model_type,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    (tmp_path / "m.model").write_bytes(model.getvalue())
    ours, theirs = _both(**{"class": "SentencePieces"}, model_file=str(tmp_path / "m.model"), **options)
    for text in [*texts[:10], "", " unknown Q", "the\u2581lower"]:
        _assert_same(ours, theirs, text)
    assert list(ours.labels) == list(theirs.labels)
    assert (ours.bos_label_id, ours.eos_label_id) == (theirs.bos_label_id, theirs.eos_label_id)

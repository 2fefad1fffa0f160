"""Texts to classes and back: label files, characters, bytes, byte pairs, and the tokenizers of other libraries."""

import gzip
import io
import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, NotCarriedOverError, SourceError
from headrace.sources import Vocabulary, init_vocabulary
from headrace.sources.shared.fields import parse_field
from headrace.vocabularies.labels import CharacterTargets, LabelVocabulary, Utf8ByteTargets

WORDS = ["the", "low", "lower", "newest", "wide", "zebra", "ran"]

VOCAB = "vocab.txt"


def _file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def _copy(vocabulary):
    return pickle.loads(pickle.dumps(vocabulary))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.txt", "a\nb\nUNK\n"),
        ("crlf.txt", "a\r\nb\r\nUNK"),
        ("bom.txt", "\ufeffa\nb\nUNK\n"),
        ("dict.vocab", "{'a': 0, 'b': 1, 'UNK': 2}"),
        ("dict.json", '{"b": 1, "a": 0, "UNK": 2}'),
        ("list.json", '["a", "b", "UNK"]'),
    ],
)
def test_every_form_of_a_label_file_gives_the_same_vocabulary(tmp_path, name, text):
    vocabulary = init_vocabulary({"class": "Vocabulary", "vocab_file": _file(tmp_path, name, text)})
    assert list(vocabulary.labels) == ["a", "b", "UNK"]
    assert vocabulary.dim == 3
    assert vocabulary.encode(" b\ta zz ").tolist() == [1, 0, 2]
    assert vocabulary.encode("").tolist() == []
    assert vocabulary.decode([1, 0, 2]) == "b a UNK"


def test_a_compressed_label_file_is_read(tmp_path):
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(b"x\nUNK\n"))
    assert init_vocabulary({"vocab_file": tmp_path / "v.txt.gz"}).encode("x").tolist() == [0]


def test_a_label_may_start_with_a_bracket_and_hold_spaces(tmp_path):
    vocabulary = LabelVocabulary(_file(tmp_path, "v.txt", "[UNK]\na b\n\nc\n"), unknown_label=None)
    assert list(vocabulary.labels) == ["[UNK]", "a b", "", "c"]


def test_several_labels_may_share_a_class_and_the_last_in_the_alphabet_names_it(tmp_path):
    path = _file(tmp_path, "v.txt", "{'b': 0, 'a': 0, 'UNK': 1}")
    vocabulary = LabelVocabulary(path)
    assert list(vocabulary.labels) == ["b", "UNK"]
    assert vocabulary.encode("a b").tolist() == [0, 0]


def test_special_labels_are_given_by_text_or_class_or_by_a_file(tmp_path):
    special = _file(tmp_path, "special.txt", "{'unknown_label': '<unk>', 'eos_label': '</s>'}")
    vocabulary = LabelVocabulary(
        labels=["a", "<unk>", "</s>"],
        special_symbols_via_file=special,
        bos_label=0,
        control_symbols={"mask": "a"},
        user_defined_symbols={"x": 2},
    )
    ids = [getattr(vocabulary, f"{name}_label_id") for name in ("unknown", "bos", "eos", "pad")]
    assert ids == [1, 0, 2, None]
    assert vocabulary.special_ids == {"mask": 0, "x": 2}


def test_a_postfix_follows_each_text():
    assert LabelVocabulary(labels=["a", "UNK"], seq_postfix=[1, 0]).encode("a").tolist() == [0, 1, 0]
    assert Utf8ByteTargets(seq_postfix=[0]).encode("").tolist() == [0]


def test_an_unknown_word_is_an_error_where_no_label_stands_for_it():
    with pytest.raises(SourceError, match="'zz' is none of the 2 labels") as caught:
        LabelVocabulary(labels=["a", "b"], unknown_label=None).encode("a zz b")
    assert "unknown_label" in caught.value.fix


def test_an_unknown_word_in_a_field_names_the_line():
    vocabulary = LabelVocabulary(labels=["a", "b"], unknown_label=None)
    field = parse_field("text", {"field": "words", "vocab": vocabulary})
    with pytest.raises(SourceError, match="field 'words': 'zz' is none") as caught:
        field.encode("a zz", "f.jsonl, line 3")
    assert caught.value.where == "f.jsonl, line 3"


def test_a_field_takes_a_vocabulary_a_dict_of_one_and_still_a_dict_of_labels():
    own = parse_field("t", {"field": "f", "vocab": LabelVocabulary(labels=["a", "UNK"])})
    described = parse_field("t", {"field": "f", "vocab": {"class": "Vocabulary", "labels": ["a", "UNK"]}})
    plain = parse_field("t", {"field": "f", "vocab": {"class": 0, "b": 1}})
    assert own.encode("a q", "").tolist() == described.encode("a q", "").tolist() == [0, 1]
    assert own.identity == described.identity == pickle.loads(pickle.dumps(own)).identity
    assert own.spec.dim == 2
    assert own.labels == ["a", "UNK"]
    assert plain.encode("class", "").tolist() == 0


def test_one_label_or_number_a_sequence_is_a_scalar_and_numbers_and_lists_are_not_mixed():
    label = parse_field("t", {"field": "f", "vocab": ["no", "yes"]})
    assert (label.note("yes", "", {}), label.encode("yes", "").shape, label.spec.has_time) == (1, (), False)
    first, facts = parse_field("t", {"field": "f", "vocab": 5}), {}
    assert first.note(4, "", facts) == 1
    first.conclude(facts)
    assert (first.spec.has_time, first.encode(4, "").tolist()) == (False, 4)
    again = parse_field("t", {"field": "f", "vocab": 5})
    again.settle(first.spec, None)
    assert again.encode(3, "").tolist() == 3
    assert first.note([1, 2], "", facts) == 2
    with pytest.raises(SourceError, match="different shapes"):
        first.conclude(facts)


def test_labels_with_spaces_are_found_between_single_spaces():
    labels = ["a", "b c", " x ", "b"]
    vocabulary = LabelVocabulary(labels=labels, unknown_label=None, single_whitespace_split=True)
    wanted = [0, 1, 2, 3, 0]
    assert vocabulary.encode(" ".join(labels[i] for i in wanted)).tolist() == wanted
    assert _copy(vocabulary).encode("b c a").tolist() == [1, 0]


@given(st.text(max_size=30))
def test_bytes_come_back_as_the_same_text(text):
    try:
        wanted = text.encode()
    except UnicodeEncodeError:
        with pytest.raises(SourceError, match="no UTF-8"):
            Utf8ByteTargets().encode(text)
        return
    classes = Utf8ByteTargets().encode(text)
    assert classes.dtype == np.int32
    assert classes.tolist() == list(wanted)
    assert Utf8ByteTargets().decode(classes) == text


@given(st.text(alphabet="ab @é", max_size=20))
def test_characters_come_back_as_the_same_text(text):
    vocabulary = CharacterTargets(labels=["@", "a", "b", " ", "é"])
    assert vocabulary.decode(vocabulary.encode(text)) == text
    assert len(vocabulary.encode(text)) == len(text)


def test_a_character_that_is_not_listed_becomes_the_unknown_one_or_an_error():
    assert CharacterTargets(labels=["@", "a"]).encode("aöa").tolist() == [1, 0, 1]
    with pytest.raises(SourceError, match="'ö' is none"):
        CharacterTargets(labels=["a"], unknown_label=None).encode("ö")


def _bpe(tmp_path, **options):
    merges = _file(tmp_path, "codes", "#version: 0.2\nl o\nlo w\ne r</w>\nlow er</w>\n")
    labels = ["l@@", "o@@", "w", "w@@", "e@@", "r", "er", "lower", "low@@", "lo@@", "UNK"]
    vocab = _file(tmp_path, "vocab", "\n".join(labels) + "\n")
    return init_vocabulary({"class": "BytePairEncoding", "vocab_file": vocab, "bpe_file": merges, **options})


def test_byte_pairs_are_joined_in_the_order_of_the_merges(tmp_path):
    vocabulary = _bpe(tmp_path)
    parts = [vocabulary.labels[i] for i in vocabulary.encode("lower low slow")]
    assert parts == ["lower", "lo@@", "w", "UNK", "lo@@", "w"]
    assert vocabulary.decode(vocabulary.encode("lower low")) == "lower low"


def test_a_part_that_is_no_label_is_taken_apart_again(tmp_path):
    vocabulary = _bpe(tmp_path)
    assert [vocabulary.labels[i] for i in vocabulary.encode("lower")] == ["lower"]
    shorter = [label for label in vocabulary.labels if label not in ("lower", "er")]
    path = _file(tmp_path, "shorter", "\n".join(shorter) + "\n")
    again = init_vocabulary({"class": "BytePairEncoding", "vocab_file": path, "bpe_file": tmp_path / "codes"})
    assert [again.labels[i] for i in again.encode("lower")] == ["low@@", "e@@", "r"]


def test_a_file_of_merges_with_other_lines_is_refused(tmp_path):
    _bpe(tmp_path)
    _file(tmp_path, "codes", "#version: 0.2\nl o\nlow\n")
    with pytest.raises(SourceError, match="'low' is not a pair") as caught:
        init_vocabulary({"class": "BytePairEncoding", "vocab_file": tmp_path / "vocab", "bpe_file": tmp_path / "codes"})
    assert caught.value.where.endswith("codes, line 3")


def _texts(seed, num_texts):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(num_texts)]


def _train_pieces(folder, model_type):
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_texts(1, 200)),
        model_writer=model,
        vocab_size=26,
        model_type=model_type,
        minloglevel=2,
        hard_vocab_limit=False,
    )
    path = folder / f"{model_type}.model"
    path.write_bytes(model.getvalue())
    return path


@pytest.fixture(scope="module")
def unigram_file(tmp_path_factory):
    return _train_pieces(tmp_path_factory.mktemp("pieces"), "unigram")


@pytest.fixture(scope="module")
def bpe_file(tmp_path_factory):
    return _train_pieces(tmp_path_factory.mktemp("pieces"), "bpe")


@pytest.fixture(params=["unigram_file", "bpe_file"])
def pieces_file(request):
    return request.getfixturevalue(request.param)


@pytest.mark.extra
def test_pieces_are_those_of_the_library(pieces_file):
    import sentencepiece

    vocabulary = init_vocabulary({"class": "SentencePieces", "model_file": pieces_file, "add_eos": True})
    wanted = sentencepiece.SentencePieceProcessor(model_file=str(pieces_file))
    for text in [*_texts(2, 10), "", "the Q"]:
        assert vocabulary.encode(text).tolist() == wanted.encode(text, add_eos=True)
        assert _copy(vocabulary).encode(text).tolist() == vocabulary.encode(text).tolist()
    assert vocabulary.decode(vocabulary.encode("the lower zebra")) == "the lower zebra"
    assert vocabulary.dim == wanted.get_piece_size() == len(vocabulary.labels)
    assert vocabulary.eos_label_id == wanted.eos_id()


@pytest.mark.extra
def test_pieces_that_are_drawn_anew_each_time_are_refused_with_the_reason(pieces_file):
    with pytest.raises(ConfigError, match="another length each time") as caught:
        init_vocabulary({"class": "SentencePieces", "model_file": pieces_file, "enable_sampling": True})
    assert "sentencepiece" in caught.value.fix


@pytest.mark.extra
def test_a_file_that_is_no_model_is_refused(tmp_path):
    pytest.importorskip("sentencepiece")
    for content in ("{}", ""):
        path = _file(tmp_path, "x.model", content)
        with pytest.raises(SourceError, match="not a SentencePiece model"):
            init_vocabulary({"class": "SentencePieces", "model_file": path})


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    """A tokenizer with a template, and a limit of length that must not cut."""
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_texts(1, 100), trainer)
    template = {"single": "<s> $A </s>", "special_tokens": [("<s>", 1), ("</s>", 2)]}
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(**template)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=7)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "unk_token": "<unk>", "model_max_length": 4}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.extra
def test_a_tokenizer_neither_cuts_nor_pads_and_puts_its_template_around(tokenizer_folder):
    text = "the lower zebra ran wide"
    vocabulary = init_vocabulary({"class": "HuggingFaceTokenizer", "huggingface_repo_dir": tokenizer_folder})
    classes = vocabulary.encode(text).tolist()
    assert classes[0] == 1
    assert classes[-1] == 2
    assert len(classes) > 4
    assert vocabulary.decode(classes) == text
    assert (vocabulary.bos_label_id, vocabulary.eos_label_id, vocabulary.unknown_label_id) == (1, 2, 0)
    assert vocabulary.pad_label_id is None
    bare = init_vocabulary(
        {
            "class": "HuggingFaceTokenizer",
            "huggingface_repo_dir": tokenizer_folder / "tokenizer.json",
            "with_template": False,
            "map_bos_to_eos": True,
        }
    )
    assert bare.encode(text).tolist() == classes[1:-1]
    assert bare.bos_label_id == 2
    assert _copy(bare).encode(text).tolist() == classes[1:-1]


@pytest.mark.extra
def test_tokens_can_be_added(tokenizer_folder):
    options = {"class": "HuggingFaceTokenizer", "huggingface_repo_dir": tokenizer_folder}
    plain, more = init_vocabulary(options), init_vocabulary({**options, "add_special_tokens": ["<foo>"]})
    assert more.dim == plain.dim + 1
    assert plain.dim in more.encode("the <foo> lower").tolist()
    assert plain.identity != more.identity


@pytest.mark.extra
def test_a_folder_without_a_tokenizer_and_a_dropout_are_refused(tmp_path, tokenizer_folder):
    pytest.importorskip("tokenizers")
    with pytest.raises(SourceError, match=r"no tokenizer\.json"):
        init_vocabulary({"class": "HuggingFaceTokenizer", "huggingface_repo_dir": tmp_path})
    _file(tmp_path, "tokenizer.json", "{'a': 1}")
    with pytest.raises(SourceError, match="not a tokenizer"):
        init_vocabulary({"class": "HuggingFaceTokenizer", "huggingface_repo_dir": tmp_path})
    with pytest.raises(ConfigError, match="without a seed"):
        init_vocabulary({"class": "HuggingFaceTokenizer", "huggingface_repo_dir": tokenizer_folder, "bpe_dropout": 0.1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class": "Wocabulary", "labels": ["a"]}, "unknown class of a vocabulary: 'Wocabulary'"),
        ({"labels": ["a"], "unknown_label": None, "seq_posfix": [0]}, "no option 'seq_posfix'"),
        ({"class": "SentencePieces"}, "missing a required argument: 'model_file'"),
        ({}, "either vocab_file= or labels="),
        ({"labels": ["a"]}, "unknown_label is 'UNK', which is none of the 1 labels"),
        ({"labels": ["a"], "unknown_label": None, "eos_label": 3}, "eos_label is 3"),
        ({"labels": ["a"], "unknown_label": None, "num_labels": 7}, "has 1 labels, but num_labels is 7"),
        ({"labels": ["a"], "unknown_label": None, "seq_postfix": ["a"]}, "seq_postfix has 'a', not a class"),
        ({"labels": ["a"], "unknown_label": None, "seq_postfix": [1]}, "seq_postfix has 1, not a class index 0..0"),
    ],
)
def test_a_wrong_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        init_vocabulary(options)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("v.txt", "", "no labels"),
        ("v.txt", "{'a': 0, 'b': 2}", "no label has the class 1"),
        ("v.txt", "{'a': 'x'}", "need str -> int"),
        ("v.txt", "{'a': __import__('os')}", "neither JSON nor a Python literal"),
        ("v.json", "{'a': 0}", "not JSON"),
        ("v.pkl", "", "pickle"),
    ],
)
def test_a_wrong_label_file_is_an_error(tmp_path, name, text, message):
    with pytest.raises(SourceError, match=message) as caught:
        LabelVocabulary(_file(tmp_path, name, text), unknown_label=None)
    assert name in caught.value.where


def test_a_missing_file_and_one_that_is_not_utf8_are_named(tmp_path):
    with pytest.raises(SourceError, match="does not exist"):
        LabelVocabulary(tmp_path / "nowhere.txt")
    (tmp_path / "latin.txt").write_bytes(b"a\nb\n\xe4\n")
    with pytest.raises(SourceError, match="0xe4") as caught:
        LabelVocabulary(tmp_path / "latin.txt")
    assert "line 3, byte 4" in caught.value.where


def test_a_vocabulary_is_not_read_from_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="not a regular file"):
        LabelVocabulary(tmp_path / "pipe")


def test_classes_that_there_are_not_cannot_be_decoded():
    for wrong in ([2], [-1], np.array([0.5])):
        with pytest.raises(SourceError, match="class"):
            LabelVocabulary(labels=["a", "UNK"]).decode(wrong)


def test_a_copy_encodes_the_same_after_its_file_is_gone(tmp_path):
    path = _file(tmp_path, "v.txt", "a\nUNK\n")
    vocabulary = LabelVocabulary(path)
    data = pickle.dumps(vocabulary)
    path.unlink()
    copy = pickle.loads(data)
    assert copy.encode("a b").tolist() == [0, 1]
    assert copy.identity == vocabulary.identity


class Upper(Vocabulary):
    """A vocabulary of a user."""

    labels = tuple("AB")
    identity = ("upper",)

    def encode(self, text):
        return np.array([self.labels.index(letter) for letter in text.upper()], np.int32)

    def decode(self, indices):
        return "".join(self.labels[i] for i in indices)


def test_a_class_of_a_user_can_be_named():
    assert init_vocabulary({"class": Upper}).encode("ab").tolist() == [0, 1]
    with pytest.raises(ConfigError, match="cannot be made"):
        init_vocabulary("words.txt")


def test_a_vocabulary_that_draws_is_no_longer_offered_and_the_error_says_what_to_use():
    with pytest.raises(NotCarriedOverError, match="BytePairEncoding; to draw parts"):
        init_vocabulary({"class": "SamplingBytePairEncoding", "vocab_file": "pieces.txt", "breadth_prob": 0.5})

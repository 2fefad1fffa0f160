"""Lines of text as sequences of symbols; `tests/peers/test_lm_peer.py` compares them with the documented dataset."""

import gzip
import json
import pickle

import pytest

from headrace.datasets import LmDataset, MultiProcDataset, init_dataset
from headrace.errors import ConfigError, SourceError

LINES = ["a b c", "", "  b  a ", "c\tc", " ", "last"]
WORDS = ["a", "b", "c", "[END]", "[UNKNOWN]", "[START]", "last"]
BLISS = """<?xml version="1.0"?>
<corpus name="c"><recording name="r1" audio="x.wav"><segment name="s1" start="0" end="1"><orth> a  b </orth></segment>
<segment name="s2"><orth></orth></segment></recording>
<recording name="r2" audio="x.wav"><segment name="s1"><orth>
c a
</orth></segment></recording></corpus>"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("\n".join(LINES), newline="")
    (tmp_path / "words.txt").write_text("\n".join(WORDS) + "\n")
    (tmp_path / "chars.txt").write_text("\n".join([*WORDS[:6], " ", *"lst"]) + "\n")
    return tmp_path


def _seqs(dataset, epoch=1, key="data"):
    return [(seq.tag, seq[key].tolist()) for seq in dataset.epoch(epoch)]


def _words(**options):
    return LmDataset(**{"corpus_file": "corpus.txt", "orth_symbols_file": "words.txt", "word_based": True, **options})


def test_words_of_lines_with_an_end_symbol():
    dataset = _words()
    wanted = [("line-0", [0, 1, 2, 3]), ("line-1", [1, 0, 3]), ("line-2", [2, 2, 3]), ("line-3", [3])]
    assert _seqs(dataset) == [*wanted, ("line-4", [6, 3])]
    assert dataset.num_outputs == {"data": (7, 1)}
    assert dataset.get_data_dtype("data") == "int8"
    assert dataset.labels["data"] == WORDS
    assert dataset.get_data_keys() == dataset.get_target_list() == ["data"]
    assert list(dataset.get_all_tags()) == [f"line-{i}" for i in range(5)]
    assert dataset.get_total_num_seqs() == 5


def test_the_vocabulary_of_a_dataset_is_at_hand_with_its_special_classes():
    vocab = {"class": "Vocabulary", "vocab_file": "words.txt", "unknown_label": "[UNKNOWN]", "eos_label": "[END]"}
    dataset = LmDataset("corpus.txt", orth_vocab=vocab)
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert copy.orth_vocab.labels == WORDS
        assert (copy.orth_vocab.eos_label_id, copy.orth_vocab.unknown_label_id) == (3, 4)
    assert _words().orth_vocab is None


def test_characters_and_ends_of_words():
    dataset = LmDataset("corpus.txt", orth_symbols_file="chars.txt", seq_end_symbol=None)
    assert [dataset.labels["data"][i] for i in _seqs(dataset)[1][1]] == ["b", " ", "a"]
    dataset = LmDataset("corpus.txt", orth_symbols_file="chars.txt", word_end_symbol="[START]", seq_end_symbol=None)
    assert [dataset.labels["data"][i] for i in _seqs(dataset)[1][1]] == ["b", "[START]", "a", "[START]"]


def test_the_delayed_key_is_the_input_for_the_next_symbol():
    dataset = _words(add_delayed_seq_data=True)
    assert dataset.get_data_keys() == ["delayed", "data"]
    assert dataset.get_target_list() == ["data"]
    assert _seqs(dataset, key="delayed")[:2] == [("line-0", [5, 0, 1, 2]), ("line-1", [5, 1, 0])]


def test_any_vocabulary_makes_the_sequence():
    dataset = LmDataset("corpus.txt", orth_vocab={"class": "Utf8ByteTargets"}, skip_empty_lines=False)
    assert [bytes(classes).decode() for _, classes in _seqs(dataset)] == ["a b c", "", "b  a", "c\tc", "", "last"]
    assert dataset.get_data_dtype("data") == "uint8"


def test_unknown_words_are_replaced_left_out_refused_or_their_lines_are_no_sequences(folder):
    (folder / "corpus.txt").write_text("a zz b\nzz\nb\n")
    with pytest.raises(SourceError, match="'zz' is none of the 7 symbols") as caught:
        _words()
    assert caught.value.where == f"{folder / 'corpus.txt'}, line 1"
    assert "auto_replace_unknown_symbol" in caught.value.fix
    replaced = _words(auto_replace_unknown_symbol=True)
    assert _seqs(replaced) == [("line-0", [0, 4, 1, 3]), ("line-1", [4, 3]), ("line-2", [1, 3])]
    left_out = _words(auto_replace_unknown_symbol=True, unknown_symbol=None)
    assert _seqs(left_out)[1] == ("line-1", [3])
    skipped = _words(error_on_invalid_seq=False)
    assert _seqs(skipped) == [("line-2", [1, 3])]
    assert list(skipped.get_all_tags()) == ["line-2"]


def test_symbols_are_replaced_once_by_a_map(folder):
    (folder / "map.json").write_text(json.dumps({"b": "a a", "c": "", "a": "b"}))
    assert _seqs(_words(orth_replace_map_file="map.json"))[:2] == [
        ("line-0", [1, 0, 0, 3]),
        ("line-1", [0, 0, 1, 3]),
    ]


@pytest.mark.parametrize(
    "text", ["{'a': 0, 'b': 1, 'c': 2, '[END]': 3, 'last': 4}", "a 0\nb 1\nlast 4\nc 2\n[END] 3\n"]
)
def test_a_map_of_symbols_is_a_dict_or_lines(folder, text):
    (folder / "map.txt").write_text(text)
    dataset = LmDataset("corpus.txt", orth_symbols_map_file="map.txt", word_based=True)
    assert _seqs(dataset)[-1] == ("line-4", [4, 3])


@pytest.mark.parametrize("name", ["corpus.xml", "corpus.xml.gz"])
def test_files_may_be_compressed_and_the_transcriptions_of_a_bliss_corpus_are_lines(folder, name):
    (folder / name).write_bytes(gzip.compress(BLISS.encode()) if name.endswith(".gz") else BLISS.encode())
    assert _seqs(_words(corpus_file=name)) == [("line-0", [0, 1, 3]), ("line-1", [3]), ("line-2", [2, 0, 3])]
    (folder / "more.txt.gz").write_bytes(gzip.compress(b"b b\n \n\n  c  \n"))
    dataset = _words(corpus_file=["corpus.txt", "more.txt.gz"])
    assert _seqs(dataset)[5:] == [("line-5", [1, 1, 3]), ("line-6", [2, 3])]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BLISS[:200], "the XML ends inside of"),
        (BLISS.replace("</orth>", ""), "not XML"),
        (BLISS.replace("<orth></orth>", ""), "segment 's2' has no orth"),
        ('<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "b">]><corpus/>', "declares entities"),
    ],
)
def test_a_damaged_bliss_corpus_is_refused(folder, text, message):
    (folder / "bad.xml").write_text(text)
    with pytest.raises(SourceError, match=message):
        _words(corpus_file="bad.xml")
    assert list((folder / "cache" / "plain").iterdir()) == []


def test_tags_come_from_a_list_or_a_prefix(folder):
    (folder / "tags.txt").write_text("v\nw\nx\ny\nz\n")
    dataset = _words(seq_list_file="tags.txt")
    assert list(dataset.get_all_tags()) == list("vwxyz")
    dataset.init_seq_order(epoch=1, seq_list=["z", "v"])
    assert [dataset.get_corpus_seq_idx(i) for i in range(2)] == [4, 0]
    assert _words(tag_prefix="sentence ").get_all_tags()[4] == "sentence 4"
    (folder / "tags.txt").write_text("v\nw\n")
    with pytest.raises(SourceError, match="2 tags for 5 lines"):
        _words(seq_list_file="tags.txt")


def test_sequences_are_found_by_tag_and_sorted_by_the_bytes_of_their_lines():
    dataset = _words(seq_ordering="sorted")
    assert [tag for tag, _ in _seqs(dataset)] == ["line-3", "line-2", "line-4", "line-0", "line-1"]
    dataset.init_seq_order(epoch=1, seq_list=["line-4", "line-0"])
    dataset.load_seqs(0, 2)
    assert dataset.get_data(0, "data").tolist() == [6, 3]


def test_a_config_makes_it_inside_of_worker_processes_and_a_copy_in_another_folder_reads_the_same(folder, monkeypatch):
    config = {
        "class": "LmDataset",
        "corpus_file": str(folder / "corpus.txt"),
        "orth_vocab": {"class": "Vocabulary", "vocab_file": "words.txt", "unknown_label": "[UNKNOWN]"},
        "seq_ordering": "random",
    }
    wanted = _seqs(init_dataset(config), epoch=3)
    with MultiProcDataset(dataset=config, num_workers=1, buffer_size=2) as dataset:
        dataset.initialize()
        assert _seqs(dataset, epoch=3) == wanted
        dataset.init_seq_order(epoch=3)
        assert dataset.num_seqs == len(wanted)
        for seq_idx, seq in enumerate(wanted):
            dataset.load_seqs(seq_idx, seq_idx + 1)
            assert (dataset.get_tag(seq_idx), dataset.get_data(seq_idx, "data").tolist()) == seq
    dataset = _words(partition_epoch=2)
    wanted, data = _seqs(dataset, epoch=2), pickle.dumps(dataset)
    monkeypatch.chdir("/")
    assert _seqs(pickle.loads(data), epoch=2) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orth_symbols_file": None}, "needs one of orth_vocab, orth_symbols_file"),
        ({"orth_vocab": {"class": "Utf8ByteTargets"}}, "needs one of"),
        ({"seq_end_symbol": "</s>"}, "seq_end_symbol is '</s>', which is none of the 7 symbols"),
        ({"auto_replace_unknown_symbol": True, "unknown_symbol": "<unk>"}, "unknown_symbol is '<unk>'"),
        ({"add_delayed_seq_data": True, "delayed_seq_data_start_symbol": "<s>"}, "'<s>' is none of the 7 symbols"),
        ({"dtype": "float32"}, "does not hold 7 classes"),
        ({"corpus_file": []}, "empty list"),
        ({"phone_info": {"lexicon_file": "l"}}, "does not offer phone_info"),
        ({"parse_orth_opts": {"prefix": ["a"]}}, "does not offer parse_orth_opts"),
        ({"use_cache_manager": True}, "does not offer use_cache_manager"),
        ({"seq_list_file": ["a", "b"]}, "not a path"),
    ],
)
def test_a_wrong_option_is_an_error(options, message):
    with pytest.raises(ConfigError, match=message):
        _words(**options)


def test_missing_and_wrong_files_are_named(folder):
    with pytest.raises(SourceError, match="cannot be read"):
        _words(corpus_file="nowhere.txt")
    with pytest.raises(SourceError, match="does not exist"):
        _words(orth_symbols_file="nowhere.txt")
    (folder / "map.txt").write_text("a 0\nb x\n")
    with pytest.raises(SourceError, match="not <symbol> <class>") as caught:
        LmDataset("corpus.txt", orth_symbols_map_file="map.txt")
    assert caught.value.where.endswith("map.txt, line 2")
    (folder / "map.json").write_text('{"b": ["a"]}')
    with pytest.raises(SourceError, match="not a dict symbol -> text"):
        _words(orth_replace_map_file="map.json")

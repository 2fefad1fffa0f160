"""`OggZipDataset`: the epoch API over archives of recordings and texts, by class and by config."""

import pickle

import numpy as np
import pytest

from headrace.datasets import MetaDataset, MultiProcDataset, OggZipDataset, init_dataset
from headrace.errors import HeadraceError
from headrace.sources import HDFWriter
from ogg_zips import write_ogg_zip

pytest.importorskip("soundfile")

RAW = {"features": "raw"}
CHARACTERS = {"class": "CharacterTargets", "labels": list("abcdefghij "), "unknown_label": None}
NUM_SEQS = 12


def upper_to_lower(text):
    return text.lower()


def without_blanks(text):
    return text.replace(" ", "")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    seqs = []
    for number in range(NUM_SEQS):
        samples = rng.uniform(-0.5, 0.5, int(rng.integers(100, 2000))).astype(np.float32)
        seqs.append((f"s{number}", samples, "".join(rng.choice(list("ABCdefghij "), number))))
    return write_ogg_zip(tmp_path / "corpus.zip", seqs)


def config(corpus, **options):
    functions = [upper_to_lower, without_blanks]
    return {
        "class": "OggZipDataset",
        "path": str(corpus),
        "audio": RAW,
        "targets": CHARACTERS,
        "targets_post_process": functions,
        **options,
    }


def contents(dataset, epoch=1):
    keys = dataset.get_data_keys()
    return [(seq.tag, [seq[key].tobytes() for key in keys]) for seq in dataset.epoch(epoch)]


def test_the_documented_keys_are_there(corpus):
    dataset = init_dataset(config(corpus))
    assert dataset.name == "corpus"
    assert dataset.get_data_keys() == ["data", "classes", "orth"]
    assert dataset.num_outputs == {"data": (1, 2), "classes": (11, 1), "orth": (256, 1)}
    dataset.init_seq_order(1)
    dataset.load_seqs(0, NUM_SEQS)
    text = dataset.get_data(7, "orth").tobytes().decode()
    assert str(dataset.get_data(7, "raw")) == text
    assert dataset.get_data(7, "raw").shape == ()
    assert dataset.get_data_dtype("raw") == "string"
    classes = "".join(dataset.labels["classes"][i] for i in dataset.get_data(7, "classes"))
    assert classes == text.lower().replace(" ", "")
    assert np.abs(dataset.get_data(7, "data")).max() == 1.0  # the peak is normalized, as documented


def test_sorting_is_by_hundredths_of_seconds(corpus):
    dataset = init_dataset(config(corpus, seq_ordering="sorted"))
    dataset.init_seq_order(1)
    order = list(dataset.get_current_seq_order())
    hundredths = dataset.source.index.lengths("seq_len")
    assert order == sorted(range(NUM_SEQS), key=lambda i: hundredths[i])
    assert dataset.supports_seq_order_sorting()


def test_inside_other_datasets_it_gives_the_same(corpus, tmp_path):
    options = config(corpus, seq_ordering="laplace:.3", partition_epoch=2)
    options.pop("targets_post_process")
    options["targets"] = {"class": "Utf8ByteTargets"}
    alone = init_dataset(options)
    expected = [contents(alone, epoch) for epoch in (1, 2, 3)]
    assert sorted(tag for epoch in expected[:2] for tag, _ in epoch) == sorted(f"s{i}" for i in range(NUM_SEQS))
    with MultiProcDataset(options, num_workers=2, buffer_size=3) as workers:
        workers.initialize()
        assert [contents(workers, epoch) for epoch in (1, 2, 3)] == expected
    copy = pickle.loads(pickle.dumps(alone))
    assert contents(copy, 3) == expected[2]
    with HDFWriter(tmp_path / "more.hdf") as writer:
        for number in reversed(range(NUM_SEQS)):
            writer.append(f"s{number}", {"data": np.array([number], np.int32)})
    meta = MetaDataset(
        datasets={"ogg": options, "hdf": {"class": "HDFDataset", "files": [str(tmp_path / "more.hdf")]}},
        data_map={"data": ("ogg", "data"), "orth": ("ogg", "orth"), "number": ("hdf", "data")},
        seq_order_control_dataset="ogg",
    )
    meta.initialize()
    found = [(seq.tag, int(seq["number"][0])) for seq in meta.epoch(2)]
    assert found == [(tag, int(tag[1:])) for tag, _ in expected[1]]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"use_cache_manager": True}, "use_cache_manager"),
        ({"targets_post_process": "lower"}, "targets_post_process='lower'"),
        ({"epoch_wise_filter": {(1, 2): {"max_mean_len": 8}}}, "no longer offered"),
        ({"audio": {"random_permute": True}}, "random_permute"),
        ({"auido": None}, "no option 'auido'"),
    ],
)
def test_options_that_are_not_offered_are_refused(corpus, options, what):
    with pytest.raises(HeadraceError, match=what):
        init_dataset(config(corpus, **options))


def test_the_documented_parameters_need_no_config_and_an_empty_corpus_keeps_its_layout(corpus, tmp_path):
    dataset = OggZipDataset([corpus], audio=None, targets=None, segment_file=None, fixed_random_subset=3)
    dataset.initialize()
    assert (len(contents(dataset)), dataset.get_data_keys()) == (3, ["orth"])
    dataset = OggZipDataset(write_ogg_zip(tmp_path / "none.zip", []), audio=RAW, targets=CHARACTERS)
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy.get_data_keys() == dataset.get_data_keys() == ["data", "classes", "orth"]
    assert contents(copy) == []


def _letters(seq, **_):
    letters = np.array([ord(letter) for letter in str(seq["raw"])], np.int32)
    return {"data": seq["data"], "letters": letters}


def test_a_function_makes_classes_of_the_text_itself(corpus):
    outputs = {"data": {"dtype": "float32", "shape": (None, 1)}, "letters": {"dtype": "int32", "sparse_dim": 128}}
    inner = config(corpus, targets=None, targets_post_process=None, seq_ordering="random")
    changed = {"class": "PostprocessingDataset", "dataset": inner, "map_seq": _letters, "map_outputs": outputs}
    with init_dataset(changed) as dataset:
        seqs = list(dataset.epoch(2))
    with init_dataset(inner) as plain:
        for seq, before in zip(seqs, plain.epoch(2), strict=True):
            assert seq["letters"].tolist() == before["orth"].tolist()
    with init_dataset({"class": "PostprocessingDataset", "dataset": inner, "map_seq": lambda seq, **_: seq}) as dataset:
        assert [sorted(seq.features) for seq in dataset.epoch(1)] == [["data", "orth"]] * NUM_SEQS

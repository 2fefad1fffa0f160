"""`LhotseDataLoader` over Shar, lazy cuts and audio in memory: batches as torch's `DataLoader` gives them."""

import itertools
import json
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("soundfile")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse")
    from lhotse import CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
    from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler, K2SpeechRecognitionDataset, OnTheFlyFeatures
    from lhotse.shar import SharWriter

import soundfile  # noqa: E402

from headrace import LhotseDataLoader  # noqa: E402
from servers.leaks import nothing_left  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own
RATE, NUM = 8000, 36


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Wav files, a manifest of their cuts, and the same as Shar."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(3)
    cuts = []
    for number in range(NUM):
        samples = rng.integers(-9000, 9000, int(rng.integers(1600, 8000))).astype(np.int16)
        soundfile.write(folder / f"{number}.wav", samples, RATE)
        recording = Recording.from_file(folder / f"{number}.wav", recording_id=f"rec-{number}")
        text = SupervisionSegment(f"cut-{number}", recording.id, 0.0, recording.duration, text=f"text {number}")
        cuts.append(MonoCut(f"cut-{number}", 0.0, recording.duration, 0, recording=recording, supervisions=[text]))
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    (folder / "shar").mkdir()
    with SharWriter(folder / "shar", fields={"recording": "wav"}, shard_size=10) as writer:
        for cut in cuts:
            writer.write(cut)
    return folder


def open_cuts(folder, form):
    if form == "lazy Shar":
        return CutSet.from_shar(in_dir=folder / "shar")
    if form == "eager Shar":
        return CutSet.from_shar(in_dir=folder / "shar").to_eager()
    if form == "shuffled Shar":
        return CutSet.from_shar(in_dir=folder / "shar", shuffle_shards=True, stateful_shuffle=False, seed=5)
    if form == "lazy manifest":
        return CutSet.from_jsonl_lazy(folder / "cuts.jsonl.gz")
    stored = CutSet.from_file(folder / "cuts.jsonl.gz")
    return CutSet.from_cuts(cut.move_to_memory(audio_format="wav", load_features=False) for cut in stored)


FORMS = ["lazy Shar", "eager Shar", "shuffled Shar", "lazy manifest", "in memory"]


def make_sampler(folder, form, **options):
    cuts = open_cuts(folder, form)
    return DynamicBucketingSampler(cuts, num_buckets=3, max_duration=4.0, shuffle=True, seed=1, **options)


def asr_dataset():
    features = OnTheFlyFeatures(Fbank(FbankConfig(sampling_rate=RATE, num_filters=20)))
    return K2SpeechRecognitionDataset(input_strategy=features)


def _as_it_is(batch):
    return batch


def by_torch(folder, form):
    loader = torch.utils.data.DataLoader(
        asr_dataset(),
        sampler=make_sampler(folder, form),
        batch_size=None,
        collate_fn=_as_it_is,
    )
    return list(loader)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for batch, value in zip(found, expected, strict=True):
        assert torch.equal(batch["inputs"], value["inputs"])
        assert batch["supervisions"]["text"] == value["supervisions"]["text"]
        assert torch.equal(batch["supervisions"]["num_frames"], value["supervisions"]["num_frames"])


@pytest.mark.parametrize("form", FORMS)
def test_batches_are_those_of_torch_for_any_number_of_workers(folder, form):
    expected = by_torch(folder, form)
    texts = sorted(text for batch in expected for text in batch["supervisions"]["text"])
    assert texts == sorted(f"text {number}" for number in range(NUM))
    for workers in {"lazy Shar": (2, 3), "in memory": (1,)}.get(form, (0,)):
        with LhotseDataLoader(asr_dataset(), make_sampler(folder, form), num_workers=workers) as loader:
            assert_same(list(loader), expected)


class Sums:
    """Of the samples."""

    def __getitem__(self, batch):
        return [(cut.id, float(cut.load_audio().sum())) for cut in batch]


@pytest.mark.parametrize("form", ["lazy Shar", "in memory"])
def test_a_pass_is_resumed_anywhere(folder, form):
    expected = [Sums()[batch] for batch in make_sampler(folder, form)]
    middle = len(expected) // 2
    for stop, workers in ((1, 0), (middle, int(form == "lazy Shar")), (len(expected) - 1, 0)):
        with LhotseDataLoader(Sums(), make_sampler(folder, form), num_workers=workers) as loader:
            head = list(itertools.islice(loader, stop))
            state = json.loads(json.dumps(loader.state_dict()))
        with LhotseDataLoader(Sums(), make_sampler(folder, form), num_workers=0) as loader:
            loader.load_state_dict(state)
            assert head + list(loader) == expected


class Counting(bytes):
    """Audio that counts how often it is pickled."""

    num = 0

    def __reduce__(self):
        type(self).num += 1
        return bytes, (bytes(self),)


class Ids:
    def __getitem__(self, batch):
        return [cut.id for cut in batch], sum(len(cut.recording.sources[0].source) for cut in batch)


def test_audio_in_memory_is_pickled_once(folder):
    cuts = open_cuts(folder, "eager Shar")
    num_bytes = 0
    for cut in cuts:
        source = cut.recording.sources[0]
        source.source = Counting(source.source)
        num_bytes += len(source.source)
    Counting.num = 0
    sampler = DynamicCutSampler(cuts, max_cuts=7)
    with LhotseDataLoader(Ids(), sampler, num_workers=2) as loader:
        found = list(loader)
    assert sorted(one for ids, _ in found for one in ids) == sorted(f"cut-{number}" for number in range(NUM))
    assert sum(size for _, size in found) == num_bytes
    assert Counting.num == NUM

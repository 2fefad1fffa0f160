"""`LhotseDataLoader` with lhotse's own samplers and datasets: the batches are those of torch's `DataLoader`."""

import copy
import itertools
import json
import os
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("soundfile")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse")
    from lhotse import CutSet, Fbank, FbankConfig, MonoCut, Recording, SupervisionSegment
    from lhotse.dataset import K2SpeechRecognitionDataset, OnTheFlyFeatures, SpecAugment
    from lhotse.dataset import sampling as samplers

import soundfile  # noqa: E402

from headrace import LhotseDataLoader  # noqa: E402
from headrace.errors import ResumeError  # noqa: E402
from servers.leaks import nothing_left  # noqa: E402

CORPUS = Path(__file__).parents[2] / "data" / "spoken_numbers"
pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left():
        yield


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Cuts of the spoken numbers, as wav files."""
    if not (CORPUS / "manifest.jsonl").is_file():
        pytest.skip("the corpus is not here")
    folder = tmp_path_factory.mktemp("wav")
    found = []
    for line in (CORPUS / "manifest.jsonl").read_text().splitlines()[::3]:
        entry = json.loads(line)
        name = entry["tag"].replace("/", "-")
        samples, rate = soundfile.read(CORPUS / entry["audio"], dtype="int16")
        soundfile.write(folder / f"{name}.wav", samples, rate)
        recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
        words = SupervisionSegment(name, name, 0.0, recording.duration, text=entry["word"], speaker=entry["speaker"])
        found.append(MonoCut(name, 0.0, recording.duration, 0, recording=recording, supervisions=[words]))
    return CutSet.from_cuts(found)


def asr_dataset(**options):
    features = OnTheFlyFeatures(Fbank(FbankConfig(sampling_rate=8000, num_filters=40)))
    return K2SpeechRecognitionDataset(input_strategy=features, return_cuts=True, **options)


class Ids:
    """The cuts themselves, for what needs no audio."""

    def __getitem__(self, batch):
        if isinstance(batch, tuple):
            return tuple(list(part.ids) for part in batch)
        return [(cut.id, cut.duration, cut.supervisions[0].text) for cut in batch]


def weighted(cuts, **options):
    np.random.seed(11)  # it draws from NumPy's global generator
    return samplers.WeightedSimpleCutSampler(
        cuts, [1.0 + index % 3 for index in range(len(cuts))], num_samples=60, max_duration=8.0, **options
    )


SAMPLERS = {
    "simple": lambda cuts, **o: samplers.SimpleCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
    "simple, filtered": lambda cuts, **o: samplers.SimpleCutSampler(cuts, max_cuts=5, shuffle=True, **o).filter(
        lambda cut: cut.duration > 0.6
    ),
    "bucketing": lambda cuts, **o: samplers.BucketingSampler(cuts, num_buckets=4, max_duration=8.0, shuffle=True, **o),
    "dynamic": lambda cuts, **o: samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
    "dynamic, filtered": lambda cuts, **o: samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o).filter(
        lambda cut: cut.duration > 0.6
    ),
    "dynamic bucketing": lambda cuts, **o: samplers.DynamicBucketingSampler(
        cuts, num_buckets=4, max_duration=8.0, shuffle=True, **o
    ),
    "dynamic bucketing, filtered": lambda cuts, **o: samplers.DynamicBucketingSampler(
        cuts, num_buckets=4, max_duration=8.0, shuffle=True, **o
    ).filter(lambda cut: cut.duration > 0.6),
    "pairs": lambda cuts, **o: samplers.CutPairsSampler(
        cuts, cuts, max_source_duration=8.0, shuffle=True, drop_last=True, **o
    ),
    "weighted": weighted,
    "round robin": lambda cuts, **o: samplers.RoundRobinSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
    ),
    "round robin, random": lambda cuts, **o: samplers.RoundRobinSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
        randomize=[0.3, 0.7],
    ),
    "zip": lambda cuts, **o: samplers.ZipSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
    ),
    "zip, not merged": lambda cuts, **o: samplers.ZipSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=8.0, shuffle=True, **o),
        merge_batches=False,
    ),
}
RANKS = [{"rank": 0, "world_size": 1}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}]


def _as_it_is(batch):
    return batch


def by_torch(dataset, make, num_workers=0, epochs=(0,)):
    sampler = make()
    loader = torch.utils.data.DataLoader(
        dataset, sampler=sampler, batch_size=None, num_workers=num_workers, collate_fn=_as_it_is
    )
    found = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        found.append(list(loader))
    return found


@pytest.mark.sample(6)
@pytest.mark.parametrize("ranks", RANKS, ids=lambda ranks: "{rank} of {world_size}".format(**ranks))
@pytest.mark.parametrize("name", SAMPLERS)
def test_all_samplers_give_what_they_give_to_torch_and_resume_anywhere(cuts, name, ranks):
    def make():
        return SAMPLERS[name](cuts, **ranks)

    def make_elsewhere():
        sampler = make()
        np.random.seed(99)
        return sampler

    (first, second) = by_torch(Ids(), make, epochs=(0, 1))
    with LhotseDataLoader(Ids(), make(), num_workers=0) as loader:
        found = list(loader)
        if name == "weighted":  # it draws from NumPy's global generator, which the loader seeds
            first = found
        else:
            assert found == first
            loader.set_epoch(1)
            assert list(loader) == second
    for stop in sorted({0, 1, len(first) // 2, len(first) - 1, len(first)}):
        with LhotseDataLoader(Ids(), make(), num_workers=0) as loader:
            head = list(itertools.islice(loader, stop))
            state = json.loads(json.dumps(loader.state_dict()))
        with LhotseDataLoader(Ids(), make_elsewhere(), num_workers=0) as loader:
            loader.load_state_dict(state)
            assert head + list(itertools.islice(loader, 1000)) == first


@pytest.mark.long
def test_samplers_give_the_same_in_their_thread(cuts):
    for name in ("dynamic bucketing, filtered", "round robin, random", "zip, not merged"):
        make = SAMPLERS[name]
        (expected,) = by_torch(Ids(), lambda make=make: make(cuts))
        with LhotseDataLoader(Ids(), make(cuts), num_workers=2) as loader:
            assert list(loader) == expected, name


def assert_same(batch, expected):
    assert type(batch) is type(expected)
    if isinstance(expected, dict):
        assert list(batch) == list(expected)
        for key, value in expected.items():
            assert_same(batch[key], value)
    elif isinstance(expected, torch.Tensor):
        assert batch.dtype == expected.dtype
        assert torch.equal(batch, expected)
    elif isinstance(expected, list):
        assert len(batch) == len(expected)
        for part, value in zip(batch, expected, strict=True):
            assert_same(part, value)
    else:
        assert batch == expected


@pytest.mark.sample(1)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_features_on_the_fly_are_those_of_torch(cuts, workers):
    def make():
        return SAMPLERS["dynamic bucketing"](cuts)

    (expected,) = by_torch(asr_dataset(), make, num_workers=1)
    assert expected[0]["inputs"].dtype == torch.float32
    with LhotseDataLoader(asr_dataset(), make(), num_workers=workers) as loader:
        found = list(loader)
        assert len(found) == len(expected)
        for batch, value in zip(found, expected, strict=True):
            assert_same(batch, value)


def test_augmentation_does_not_depend_on_workers_and_is_resumed(cuts):
    def open_loader(workers):
        dataset = asr_dataset(input_transforms=[SpecAugment(p=1.0)])
        return LhotseDataLoader(dataset, SAMPLERS["dynamic bucketing"](cuts), num_workers=workers, seed=3)

    with open_loader(0) as loader:
        expected = [batch["inputs"] for batch in loader]
    with open_loader(2) as loader:
        head = [batch["inputs"].clone() for batch in itertools.islice(loader, 4)]
        state = loader.state_dict()
    with open_loader(1) as loader:
        loader.load_state_dict(state)
        found = head + [batch["inputs"].clone() for batch in loader]
    assert len(found) == len(expected)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_tensors_of_a_batch_lie_in_one_block_of_shared_memory(cuts):
    with LhotseDataLoader(asr_dataset(), SAMPLERS["simple"](cuts), num_workers=1) as loader:
        next(loader)
        for batch in itertools.islice(loader, 6):  # the first batches travel in a group
            last = batch
        tensors = [last["inputs"], last["supervisions"]["num_frames"]]
        with open("/proc/self/maps") as maps:
            blocks = [
                tuple(int(edge, 16) for edge in line.split()[0].split("-")) for line in maps if "headrace" in line
            ]
        found = [[block for block in blocks if block[0] <= tensor.data_ptr() < block[1]] for tensor in tensors]
        assert found[0]
        assert found[0] == found[1]
        del last, batch, tensors


class Deadly:
    """Ends its worker, once, at a batch with a certain cut."""

    def __init__(self, dataset, cut_id, mark):
        self.dataset, self.cut_id, self.mark = dataset, cut_id, str(mark)

    def __getitem__(self, batch):
        if self.cut_id in set(batch.ids):
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
            except FileExistsError:
                pass
        return self.dataset[batch]


def test_batches_are_the_same_after_a_worker_is_killed(cuts, tmp_path):
    def make():
        return SAMPLERS["dynamic bucketing"](cuts)

    (expected,) = by_torch(asr_dataset(), make)
    for number in (0, len(expected) // 2):
        cut_id = expected[number]["supervisions"]["cut"][0].id
        dataset = Deadly(asr_dataset(), cut_id, tmp_path / str(number))
        with LhotseDataLoader(dataset, make(), num_workers=2) as loader:
            found = list(loader)
            assert sum(worker.num_restarts for worker in loader.report.workers) == 1
        for batch, value in zip(found, expected, strict=True):
            assert_same(batch, value)
        del found, batch


def test_an_error_names_the_cuts(cuts, tmp_path):
    broken = CutSet.from_cuts(cut for cut in cuts)
    victim = next(iter(broken))
    missing = MonoCut(
        "gone", 0.0, victim.duration, 0, recording=Recording.from_dict(victim.recording.to_dict())
    ).with_id("gone")
    missing.recording.sources[0].source = str(tmp_path / "missing.wav")
    missing.supervisions = victim.supervisions
    sampler = samplers.SimpleCutSampler(CutSet.from_cuts([missing, *list(broken)[1:3]]), max_cuts=3)
    with LhotseDataLoader(asr_dataset(), sampler) as loader, pytest.raises(Exception, match=r"missing\.wav") as caught:
        next(loader)
    notes = "\n".join(caught.value.__notes__)
    assert "batch 0 of epoch 0, 3 ids: gone, " in notes
    assert list(broken.ids)[2] in notes


def test_torch_in_a_worker_uses_one_thread(cuts):
    class Threads:
        def __getitem__(self, batch):
            return torch.get_num_threads()

    with LhotseDataLoader(Threads(), SAMPLERS["simple"](cuts), num_workers=1) as loader:
        assert next(loader) == 1


def test_a_position_that_was_loaded_into_the_sampler_itself_counts(cuts):
    """As in icefall: the checkpoint has the sampler's state, which goes to the sampler."""
    sampler = SAMPLERS["dynamic"](cuts)
    whole = [list(batch.ids) for batch in sampler]
    sampler = SAMPLERS["dynamic"](cuts)
    iterator = iter(sampler)
    for _ in range(4):
        next(iterator)
    own_state = sampler.state_dict()
    kept_state = copy.deepcopy(own_state)  # lhotse empties what it loads
    sampler = SAMPLERS["dynamic"](cuts)
    sampler.load_state_dict(own_state)
    with LhotseDataLoader(Ids(), sampler, num_workers=1) as loader:
        head = [[one for one, *_ in batch] for batch in itertools.islice(loader, 3)]
        replayed = loader.state_dict()
    assert head == whole[4:7]
    with LhotseDataLoader(Ids(), SAMPLERS["dynamic"](cuts), num_workers=0) as loader:
        loader.load_state_dict(replayed)  # counts from the start of the pass, which was in the sampler's own state
        with pytest.raises(ResumeError, match="snapshot"):
            next(loader)
    sampler = SAMPLERS["dynamic"](cuts)
    sampler.load_state_dict(kept_state)
    with LhotseDataLoader(Ids(), sampler, num_workers=0, resume="snapshot") as loader:
        list(itertools.islice(loader, 3))
        state = loader.state_dict()
    with LhotseDataLoader(Ids(), SAMPLERS["dynamic"](cuts), num_workers=0, resume="snapshot") as loader:
        loader.load_state_dict(state)
        assert [[one for one, *_ in batch] for batch in loader] == whole[7:]


def test_another_world_size_is_refused_with_the_way_out(cuts):
    with LhotseDataLoader(Ids(), SAMPLERS["dynamic"](cuts, rank=0, world_size=2), num_workers=0) as loader:
        next(loader)
        state = loader.state_dict()
    loader = LhotseDataLoader(Ids(), SAMPLERS["dynamic"](cuts), num_workers=0)
    with pytest.raises(ResumeError, match="PlannedCutSampler"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("ranks", RANKS, ids=lambda ranks: "{rank} of {world_size}".format(**ranks))
def test_the_own_state_of_a_sampler_of_lhotse_may_be_chosen(cuts, ranks):
    def open_loader():
        return LhotseDataLoader(Ids(), SAMPLERS["dynamic bucketing"](cuts, **ranks), num_workers=0, resume="snapshot")

    with open_loader() as loader:
        whole = list(loader)
        head = list(itertools.islice(loader, 6))
        state = loader.state_dict()
    assert state["state_batches"] > 0
    with open_loader() as loader:
        loader.load_state_dict(state)
        assert head + list(loader) == whole


def test_a_worker_init_fn_of_lhotse_is_called(cuts):
    from lhotse.dataset.dataloading import make_worker_init_fn

    class Seeds:
        def __getitem__(self, batch):
            return os.environ["LHOTSE_PROCESS_SEED"]

    init = make_worker_init_fn(seed=7)
    with LhotseDataLoader(Seeds(), SAMPLERS["simple"](cuts), num_workers=1, worker_init_fn=init) as loader:
        assert set(loader) == {"7"}

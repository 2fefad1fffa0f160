"""Recipes of lhotse under the loader: any sampler, any transforms, any workers, any place to stop, in any epoch."""

import contextlib
import gc
import itertools
import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from examples_of_laws import examples

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lhotse = pytest.importorskip("lhotse")
    from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
    from lhotse.dataset import cut_transforms
    from lhotse.dataset import sampling as samplers
    from lhotse.shar import SharWriter
pytest.importorskip("soundfile")

import soundfile

from headrace import LhotseDataLoader
from headrace.errors import ResumeError

pytestmark = [pytest.mark.extra, pytest.mark.filterwarnings("ignore")]  # lhotse's and torch's own
NUM = 24


@pytest.fixture(scope="module")
def cuts(tmp_path_factory):
    """Recordings of the corpus, of different lengths."""
    folder = tmp_path_factory.mktemp("cuts")
    data = Path(__file__).parents[2] / "data" / "spoken_numbers"
    lines = (data / "manifest.jsonl").read_text().splitlines()[:NUM]
    found = []
    for entry in map(json.loads, lines):
        name = entry["tag"].replace("/", "-")
        soundfile.write(folder / f"{name}.wav", *soundfile.read(data / entry["audio"], dtype="int16"))
        recording = Recording.from_file(folder / f"{name}.wav", recording_id=name)
        words = SupervisionSegment(name, name, 0.0, recording.duration, text=entry["word"])
        found.append(MonoCut(name, 0.0, recording.duration, 0, recording=recording, supervisions=[words]))
    return CutSet.from_cuts(found)


class Described:
    """What a batch is: ids, durations, tracks and transforms; and a number of Python's generator."""

    def __init__(self, transforms=()):
        self.transforms = list(transforms)

    def __getitem__(self, batch):
        for transform in self.transforms:
            batch = transform(batch)
        parts = batch if isinstance(batch, tuple) else (batch,)
        described = [json.dumps(_content(cut.to_dict()), default=str, sort_keys=True) for part in parts for cut in part]
        return described, random.random()


def _content(value):
    """Return a cut without what lhotse notes in it when it is drawn, in whichever pass."""
    if isinstance(value, dict):
        return {key: _content(part) for key, part in value.items() if key not in ("dataloading_info", "custom")}
    return [_content(part) for part in value] if isinstance(value, list) else value


# They draw from Python's global generator, and give no cut a new id, which would be another one in each run.
TRANSFORMS = {
    "speed": lambda: cut_transforms.PerturbSpeed([0.9, 1.1], p=0.7, randgen=random, preserve_id=True),
    "tempo": lambda: cut_transforms.PerturbTempo([0.9, 1.1], p=0.7, randgen=random, preserve_id=True),
    "volume": lambda: cut_transforms.PerturbVolume(p=0.7, randgen=random, preserve_id=True),
}
SAMPLERS = {
    "simple": lambda cuts, **o: samplers.SimpleCutSampler(cuts, max_cuts=4, shuffle=True, **o),
    "dynamic": lambda cuts, **o: samplers.DynamicCutSampler(cuts, max_duration=3.0, shuffle=True, **o),
    "dynamic bucketing": lambda cuts, **o: samplers.DynamicBucketingSampler(
        cuts, num_buckets=3, max_duration=3.0, shuffle=True, **o
    ),
    "round robin": lambda cuts, **o: samplers.RoundRobinSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=3.0, shuffle=True, **o),
        randomize=[0.3, 0.7],
    ),
    "zip": lambda cuts, **o: samplers.ZipSampler(
        samplers.SimpleCutSampler(cuts, max_cuts=3, shuffle=True, **o),
        samplers.DynamicCutSampler(cuts, max_duration=3.0, shuffle=True, **o),
    ),
    "lazy": lambda cuts, **o: samplers.DynamicCutSampler(
        CutSet(lhotse.lazy.LazyShuffler(cuts, buffer_size=10)), max_duration=3.0, **o
    ),
}


def open_loader(cuts, recipe, workers):
    name, mapped, inner = recipe
    sampler = SAMPLERS[name](cuts)
    for transform in mapped:
        sampler = sampler.map(TRANSFORMS[transform]())
    dataset = Described([TRANSFORMS[transform]() for transform in inner])
    return LhotseDataLoader(dataset, sampler, num_workers=workers, seed=2)


def epochs_of(loader, epochs):
    found = []
    for epoch in epochs:
        loader.set_epoch(epoch)
        found.append(list(loader))
    return found


RECIPES = st.tuples(
    st.sampled_from(list(SAMPLERS)),
    st.lists(st.sampled_from(list(TRANSFORMS)), max_size=2),
    st.lists(st.sampled_from(list(TRANSFORMS)), max_size=2),
)


# Each example starts workers that import torch: without shrinking, which takes minutes.
@settings(
    examples(8),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(recipe=RECIPES, workers=st.sampled_from([(0, 1), (2, 0), (1, 2)]), epoch=st.integers(0, 1), data=st.data())
def test_two_runs_are_equal_and_a_resume_goes_on(cuts, recipe, workers, epoch, data):
    random.seed(1)
    with open_loader(cuts, recipe, workers[0]) as loader:
        whole = epochs_of(loader, range(3))
    stop = data.draw(st.integers(0, len(whole[epoch])))
    random.seed(1)
    with open_loader(cuts, recipe, workers[1]) as loader:
        before = epochs_of(loader, range(epoch))
        loader.set_epoch(epoch)
        before.append(list(itertools.islice(loader, stop)))
        state = json.loads(json.dumps(loader.state_dict()))
    assert before == [*whole[:epoch], whole[epoch][:stop]]
    random.seed(99)
    with open_loader(cuts, recipe, workers[0]) as loader:
        loader.load_state_dict(state)
        assert before[-1] + list(loader) == whole[epoch] or stop == len(whole[epoch])
        if stop < len(whole[epoch]):
            assert epochs_of(loader, range(epoch + 1, 3)) == whole[epoch + 1 :]


@pytest.mark.parametrize("mapped", [[], ["speed"]])
def test_a_pass_after_one_that_was_broken_off_does_not_depend_on_how_far_that_one_had_drawn(cuts, mapped):
    def run(workers):
        with open_loader(cuts, ("lazy", mapped, ["volume"]), workers) as loader:
            loader.set_epoch(0)
            head = list(itertools.islice(loader, 2))
            return head, epochs_of(loader, [1, 2])

    assert run(0) == run(1)


@pytest.mark.parametrize("name", ["dynamic", "lazy"])
def test_ranks_share_everything_once(cuts, name):
    def run(rank):
        sampler = SAMPLERS[name](cuts, rank=rank, world_size=2).map(TRANSFORMS["volume"]())
        with LhotseDataLoader(Ids(), sampler, num_workers=1) as loader:
            return list(loader)

    shares = [run(rank) for rank in range(2)]
    ids = [one for share in shares for batch in share for one in batch]
    assert len(shares[0]) == len(shares[1])
    assert {one.partition("_dup")[0] for one in ids} == set(cuts.ids)
    assert len([one for one in ids if "_dup" not in one]) == NUM


@pytest.mark.parametrize("is_stateful", [False, True])
def test_shar_is_resumed_in_a_later_epoch_unless_its_shards_count_their_passes(cuts, tmp_path, is_stateful):
    (tmp_path / "shar").mkdir()
    with SharWriter(tmp_path / "shar", fields={"recording": "wav"}, shard_size=3) as writer:
        for cut in cuts:
            writer.write(cut)

    def make():
        source = CutSet.from_shar(in_dir=tmp_path / "shar", shuffle_shards=True, stateful_shuffle=is_stateful)
        return LhotseDataLoader(Ids(), samplers.DynamicCutSampler(source, max_cuts=4, shuffle=True), num_workers=1)

    with make() as loader:
        epochs_of(loader, range(2))
        loader.set_epoch(2)
        list(itertools.islice(loader, 2))
        state = json.loads(json.dumps(loader.state_dict()))
        rest = []
        with contextlib.suppress(StopIteration):
            while True:
                rest.append(next(loader))
    with make() as loader:
        loader.load_state_dict(state)
        if is_stateful:
            with pytest.raises(ResumeError, match="earlier passes"):
                next(loader)
        else:
            assert list(loader) == rest
    del loader
    gc.collect()  # lhotse leaves archives open that were not read to their end; here their warnings are ignored


class Ids:
    """The ids of a batch."""

    def __getitem__(self, batch):
        return list(batch.ids)


@pytest.mark.long
def test_texts_need_no_id():
    from lhotse.cut.text import TextExample, TextPairExample

    texts = [TextExample(f"text {number}", tokens=np.arange(number % 5 + 1)) for number in range(20)]
    pairs = [TextPairExample(text, TextExample("x", tokens=np.arange(2))) for text in texts]

    class Texts:
        def __getitem__(self, batch):
            return [one.text if isinstance(one, TextExample) else one.source.text for one in batch]

    for texts_or_pairs in (texts, pairs):
        sampler = samplers.DynamicCutSampler(
            CutSet(texts_or_pairs), constraint=samplers.base.TokenConstraint(max_tokens=8), shuffle=True
        )
        with LhotseDataLoader(Texts(), sampler, num_workers=2) as loader:
            whole = list(loader)
        assert sorted(itertools.chain(*whole)) == sorted(text.text for text in texts)
        with LhotseDataLoader(Texts(), sampler, num_workers=1) as loader:
            head = [next(loader)]
            state = loader.state_dict()
        with LhotseDataLoader(Texts(), sampler, num_workers=0) as loader:
            loader.load_state_dict(state)
            assert head + list(loader) == whole

"""Recipes of lhotse under the loader: any sampler, any transforms, any workers, any place to stop, in any epoch."""

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
    from lhotse.dataset.dataloading import make_worker_init_fn
    from lhotse.shar import SharWriter
pytest.importorskip("soundfile")

import soundfile

from headrace import LhotseDataLoader
from headrace.errors import ConfigError

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
    """What a batch is: ids, durations, tracks and transforms; and numbers of all kinds of generators."""

    def __init__(self, transforms=()):
        self.transforms, self.own = list(transforms), np.random.default_rng(3)

    def __getitem__(self, batch):
        for transform in self.transforms:
            batch = transform(batch)
        parts = batch if isinstance(batch, tuple) else (batch,)
        described = [json.dumps(_content(cut.to_dict()), default=str, sort_keys=True) for part in parts for cut in part]
        return described, [random.random(), float(self.own.random())]


def _content(value):
    """Return a cut without what lhotse notes in it when it is drawn, in whichever pass."""
    if isinstance(value, dict):
        return {key: _content(part) for key, part in value.items() if key not in ("dataloading_info", "custom")}
    return [_content(part) for part in value] if isinstance(value, list) else value


TRANSFORMS = {
    "speed": lambda cuts: cut_transforms.PerturbSpeed([0.9, 1.1], p=0.7),
    "speed, seeded": lambda cuts: cut_transforms.PerturbSpeed([0.9, 1.1], p=0.7, randgen=random.Random(7)),
    "speed, same ids": lambda cuts: cut_transforms.PerturbSpeed(
        [0.9, 1.1], p=0.7, randgen=random.Random(7), preserve_id=True
    ),
    "tempo": lambda cuts: cut_transforms.PerturbTempo([0.9, 1.1], p=0.7),
    "volume": lambda cuts: cut_transforms.PerturbVolume(p=0.7),
    "mix": lambda cuts: cut_transforms.CutMix(cuts.subset(first=5), snr=(5, 20), p=0.6),
    "mix, same ids": lambda cuts: cut_transforms.CutMix(
        cuts.subset(first=5), snr=(5, 20), p=0.6, preserve_id=True, random_mix_offset=True
    ),
    "concatenate": lambda cuts: cut_transforms.CutConcatenate(gap=0.1),
    "padding": lambda cuts: cut_transforms.ExtraPadding(extra_samples=400, randomized=True),
    "reverb": lambda cuts: cut_transforms.ReverbWithImpulseResponse(p=0.6),
}
SAMPLERS = {
    "simple": lambda cuts, **o: samplers.SimpleCutSampler(cuts, max_cuts=4, shuffle=True, **o),
    "dynamic": lambda cuts, **o: samplers.DynamicCutSampler(cuts, max_duration=3.0, shuffle=True, **o),
    "dynamic bucketing": lambda cuts, **o: samplers.DynamicBucketingSampler(
        cuts, num_buckets=3, max_duration=3.0, shuffle=True, **o
    ),
    "bucketing, concurrent": lambda cuts, **o: samplers.DynamicBucketingSampler(
        cuts, num_buckets=3, max_duration=3.0, shuffle=True, concurrent=True, **o
    ),
    "any seed": lambda cuts, **o: samplers.DynamicCutSampler(
        cuts, max_duration=3.0, shuffle=True, **{"seed": "randomized", **o}
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
    "mixed lazily": lambda cuts, **o: samplers.DynamicCutSampler(
        cuts.mix(cuts.subset(first=4), snr=10, preserve_id="left", seed=random.Random(1)), max_duration=4.0, **o
    ),
}


def open_loader(cuts, recipe, workers):
    name, mapped, inner = recipe
    sampler = SAMPLERS[name](cuts)
    for transform in mapped:
        sampler = sampler.map(TRANSFORMS[transform](cuts))
    dataset = Described([TRANSFORMS[transform](cuts) for transform in inner])
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
    random.seed(1)  # a lazy shuffler without a generator takes this one's
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


@pytest.mark.parametrize(("name", "mapped"), [("lazy", []), ("mixed lazily", ["speed, seeded"])])
def test_a_pass_after_one_that_was_broken_off_does_not_depend_on_how_far_that_one_had_drawn(cuts, name, mapped):
    def run(workers):
        random.seed(1)
        with open_loader(cuts, (name, mapped, ["mix"]), workers) as loader:
            loader.set_epoch(0)
            head = list(itertools.islice(loader, 2))
            return head, epochs_of(loader, [1, 2])

    assert run(0) == run(1)


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["randomized", "mapped", "plain"])
def test_ranks_share_everything_once_or_draw_different_orders(cuts, form):
    def run(number, **options):
        sampler = SAMPLERS["any seed"](cuts, **options)
        if form == "mapped":
            sampler = sampler.map(cut_transforms.PerturbVolume(p=1.0, preserve_id=True))
        init = make_worker_init_fn(rank=number, world_size=2, seed=42)
        with LhotseDataLoader(Described(), sampler, num_workers=1, worker_init_fn=init) as loader:
            return [[json.loads(cut)["id"] for cut in batch[0]] for batch in loader]

    if form == "randomized":  # each rank reads everything, in an order of its own
        orders = [run(number, rank=0, world_size=1) for number in range(2)]
        assert orders[0] != orders[1]
        assert [sorted(itertools.chain(*order)) for order in orders] == [sorted(cuts.ids)] * 2
    else:
        shares = [run(number, rank=number, world_size=2) for number in range(2)]
        ids = [one for share in shares for batch in share for one in batch]
        assert len(shares[0]) == len(shares[1])
        assert {one.partition("_dup")[0] for one in ids} == set(cuts.ids)
        assert len([one for one in ids if "_dup" not in one]) == NUM


def test_ranks_that_share_an_order_cannot_each_draw_a_true_random_seed(cuts):
    sampler = SAMPLERS["any seed"](cuts, seed="trng", rank=0, world_size=2)
    with (
        LhotseDataLoader(Described(), sampler) as loader,
        pytest.raises(ConfigError, match="draws another seed on each rank"),
    ):
        next(loader)


@pytest.mark.long
def test_a_true_random_seed_is_in_the_state(cuts):
    def make():
        return LhotseDataLoader(Described(), SAMPLERS["any seed"](cuts, seed="trng"), num_workers=1)

    with make() as loader:
        head = list(itertools.islice(loader, 2))
        state = loader.state_dict()
    with make() as loader:
        loader.load_state_dict(state)
        tail = list(loader)
    ids = [json.loads(cut)["id"] for batch in head + tail for cut in batch[0]]
    assert sorted(ids) == sorted(cuts.ids)


@pytest.mark.long
def test_shar_with_shuffled_shards_goes_on_in_a_later_epoch(cuts, tmp_path):
    (tmp_path / "shar").mkdir()
    with SharWriter(tmp_path / "shar", fields={"recording": "wav"}, shard_size=3) as writer:
        for cut in cuts:
            writer.write(cut)

    def make():
        source = CutSet.from_shar(
            in_dir=tmp_path / "shar", shuffle_shards=True, stateful_shuffle=True, seed="randomized"
        )
        return LhotseDataLoader(Ids(), samplers.DynamicCutSampler(source, max_cuts=4), num_workers=1)

    random.seed(5)
    with make() as loader:
        whole = epochs_of(loader, range(3))
        assert whole[0] != whole[1] != whole[2]
    for epoch, stop in ((0, 2), (1, 0), (2, 2)):
        random.seed(5)
        with make() as loader:
            epochs_of(loader, range(epoch))
            loader.set_epoch(epoch)
            head = list(itertools.islice(loader, stop))
            state = json.loads(json.dumps(loader.state_dict()))
        with make() as loader:
            loader.load_state_dict(state)
            assert head + list(loader) == whole[epoch]
            assert epochs_of(loader, range(epoch + 1, 3)) == whole[epoch + 1 :]
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

"""What lhotse and torch ask of a loader: who a worker is, what an iterable wrapper is."""

import os
import subprocess
import sys
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")
    lhotse = pytest.importorskip("lhotse")
    from lhotse.cut.text import TextExample
    from lhotse.dataset import sampling as samplers
    from lhotse.dataset.dataloading import make_worker_init_fn
    from lhotse.dataset.iterable_dataset import IterableDatasetWrapper

from headrace import LhotseDataLoader
from headrace.errors import ConfigError

pytestmark = pytest.mark.filterwarnings("ignore")  # lhotse's and torch's own


def sampler_of_texts():
    texts = lhotse.CutSet([TextExample(f"text {number}", tokens=range(3)) for number in range(12)])
    return samplers.DynamicCutSampler(texts, constraint=samplers.base.TokenConstraint(max_tokens=6))


def test_a_loader_that_is_open_at_the_end_of_a_program_is_silent():
    program = """
import headrace as hr
from lhotse import CutSet
from lhotse.dataset import SimpleCutSampler
from lhotse.testing.dummies import DummyManifest
class Ids:
    def __getitem__(self, cuts):
        return list(cuts.ids)
cuts = DummyManifest(CutSet, begin_id=0, end_id=100)
loader = hr.LhotseDataLoader(Ids(), SimpleCutSampler(cuts, max_duration=10.0), num_workers=0)
for batch in loader:
    break
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""


class WhoAmI:
    """What a worker knows of itself."""

    def __getitem__(self, batch):
        info = torch.utils.data.get_worker_info()
        return None if info is None else (info.id, info.num_workers, info.dataset is self), os.environ.get("RANK")


def test_a_worker_knows_that_it_is_one():
    init = make_worker_init_fn(rank=3, world_size=4)
    with LhotseDataLoader(WhoAmI(), sampler_of_texts(), num_workers=2, worker_init_fn=init) as loader:
        found = set(loader)
    assert found <= {((worker, 2, True), "3") for worker in range(2)}
    assert found
    with LhotseDataLoader(WhoAmI(), sampler_of_texts(), num_workers=0, worker_init_fn=init) as loader:
        assert set(loader) == {(None, os.environ.get("RANK"))}


def test_an_iterable_wrapper_is_refused_with_what_to_give():
    wrapper = IterableDatasetWrapper(WhoAmI(), sampler_of_texts())
    with pytest.raises(ConfigError, match="IterableDatasetWrapper is iterated over") as caught:
        LhotseDataLoader(wrapper, sampler_of_texts())
    assert "wrapper.sampler" in str(caught.value)

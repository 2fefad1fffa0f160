"""The loader for JAX: arrays where they belong, over the same memory where that can be, which nobody writes to."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

if "HEADRACE_TEST_JAX" not in os.environ:  # where JAX is imported, no other test may fork
    pytest.skip("run by test_jax_apart.py, in a process of its own", allow_module_level=True)
jax = pytest.importorskip("jax")

from headrace import StaticDataset  # noqa: E402
from headrace.adapters.jax import JaxLoader, to_jax  # noqa: E402
from headrace.batching import FixedCount, Pack  # noqa: E402
from headrace.errors import ConfigError, HeadraceError  # noqa: E402
from headrace.loading import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra

NUM_SEQS = 60


def widen(seq):
    return {**seq, "data": seq["data"] + np.arange(64, dtype=np.float32)}


def open_loader(**options):
    lengths = [37 * i % 50 + 20 for i in range(NUM_SEQS)]
    seqs = [
        {"data": np.full((length, 1), i, np.float32), "classes": np.arange(length, dtype=np.int32)}
        for i, length in enumerate(lengths)
    ]
    options = {"batching": FixedCount(3), "transform": widen, **options}
    return DataLoader(StaticDataset(seqs, seq_ordering="random"), **options)


def content_of(batch):
    arrays = {key: (str(value.dtype), value.shape, np.asarray(value).tobytes()) for key, value in batch.items()}
    return arrays, batch.lengths["data"].tolist(), batch.tags, batch.position


def expected_of(**options):
    with open_loader(**options) as loader:
        return [content_of(batch) for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("depth", [1, 3])
def test_batches_hold_what_the_loader_delivers(workers, depth):
    expected = expected_of()
    with open_loader(num_workers=workers) as loader:
        for batch, content in zip(to_jax(loader, depth=depth), expected, strict=True):
            assert isinstance(batch["data"], jax.Array)
            assert isinstance(batch.lengths["data"], jax.Array)
            assert content_of(batch) == content


def test_packed_batches_become_arrays_as_a_whole():
    with open_loader(batching=Pack(100, 2)) as loader:
        expected = [(batch.segment_ids.copy(), batch.packing.rows.copy(), batch["data"].copy()) for batch in loader]
        loader.set_epoch(1)
        for batch, arrays in zip(to_jax(loader), expected, strict=True):
            found = batch.segment_ids, batch.packing.rows, batch["data"]
            assert all(isinstance(array, jax.Array) for array in found)
            assert all(np.array_equal(one, other) for one, other in zip(found, arrays, strict=True))


def test_what_lies_over_a_worker_s_memory_is_not_written_to_while_jax_has_it():
    expected = expected_of()
    with open_loader(num_workers=2) as loader:
        kept = list(to_jax(loader))
        # One of several sizes at least lies where the worker wrote it: that is what has to be kept.
        with open_loader(num_workers=1) as other:
            batch = next(iter(other))
            address = batch["data"].ctypes.data
            aligned = jax.device_put(batch["data"])
            assert aligned.unsafe_buffer_pointer() == address
        loader.set_epoch(1)
        for _ in range(3):  # 60 more batches, which would be written over what is kept, were it free
            for batch in to_jax(loader):
                del batch
        assert [content_of(batch) for batch in kept] == expected
    assert [content_of(batch) for batch in kept] == expected
    assert np.array_equal(aligned, np.asarray(kept[0]["data"]))


def test_a_part_of_an_array_and_a_jitted_result_hold_it_too():
    with open_loader(num_workers=1) as loader:
        batches = iter(to_jax(loader))
        batch = next(batches)
        expected = np.asarray(batch["data"]).copy()
        flat, view = batch["data"].reshape(-1), np.asarray(batch["data"])
        same = jax.jit(lambda array: array)(batch["data"])
        del batch
        gc.collect()
        for _ in batches:
            pass
        for kept in (flat.reshape(expected.shape), view, same):
            assert np.array_equal(kept, expected)


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_donating_an_array_does_not_write_to_the_worker_s_memory():
    step = jax.jit(lambda array: array * 0 - 1, donate_argnums=0)
    with open_loader(num_workers=1) as loader:
        for batch in loader:
            before = batch["data"].copy()
            found = step(jax.device_put(batch["data"]))
            assert float(found[0, 0, 0]) == -1
            assert np.array_equal(batch["data"], before)


def test_memory_is_given_back_when_jax_has_no_more_of_it():
    lengths_bytes = 3 * 70 * 64 * 4
    with open_loader(num_workers=1, max_bytes=8 * lengths_bytes) as loader:  # a few batches at a time, no more
        num_batches = 0
        for epoch in range(1, 6):
            loader.set_epoch(epoch)
            for batch in to_jax(loader):
                num_batches += 1
                del batch
    assert num_batches == 5 * NUM_SEQS / 3


def test_the_state_is_that_of_the_consumer_and_not_of_what_was_put_ahead():
    expected = expected_of()
    for num_steps in (0, 7, len(expected)):
        with open_loader() as loader:
            ahead = to_jax(loader, depth=3)
            for _ in zip(range(num_steps), ahead, strict=False):
                pass
            state = ahead.state_dict()
        assert state["position"] == num_steps
        with to_jax(open_loader(num_workers=1)) as other:
            other.load_state_dict(state)
            assert other.state_dict() == state
            assert [content_of(batch) for batch in other] == expected[num_steps:]
            assert other.state_dict()["epoch"] == 2
            assert len(other) == len(expected)


def test_an_error_comes_at_its_place_in_the_stream():
    def fail(seq):
        return {**seq, "data": seq["data"][0] if seq["data"][0, 0] == 11 else seq["data"]}

    seqs = [{"data": np.full((4, 2), i, np.float32)} for i in range(40)]
    with DataLoader(StaticDataset(seqs), batching=FixedCount(2), transform=fail) as loader:
        found = []
        with pytest.raises(HeadraceError):
            found.extend(batch.position for batch in to_jax(loader, depth=3))
    assert found == [0, 1, 2, 3, 4]


def test_what_a_collate_made_is_looked_through():
    def collate(seqs):
        return {"first": [seqs[0]["data"], "text"], "number": 3}

    with open_loader(collate=collate) as loader:
        value = next(iter(to_jax(loader)))
    assert isinstance(value["first"][0], jax.Array)
    assert (value["first"][1], value["number"]) == ("text", 3)


@pytest.mark.parametrize("placement", ["cpu", 0, "tpu:0"])
def test_a_place_that_there_is_not_is_refused(placement):
    with open_loader() as loader, pytest.raises(ConfigError, match="is not a device or a sharding"):
        to_jax(loader, placement)


def test_something_else_than_a_loader_is_refused():
    with pytest.raises(ConfigError, match=r"DataLoader, got list"):
        JaxLoader([1, 2])


_SHARDED = """
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import headrace as hr
from headrace.adapters.jax import to_jax
from headrace.batching import FixedCount, Pack
from headrace.errors import ConfigError

assert len(jax.devices()) == 4
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("batch",)), P("batch", None))
dataset = hr.StaticDataset([{"data": np.full((7 * i % 20 + 1, 4), i, np.float32)} for i in range(40)])

with hr.DataLoader(dataset, batching=FixedCount(8), num_workers=1) as loader:
    expected = [(batch["data"].copy(), batch.lengths["data"].copy()) for batch in loader]
    loader.set_epoch(1)
    kept = list(to_jax(loader, sharding))
    for batch in to_jax(loader, sharding):  # written over what is kept, were it free
        assert batch["data"].sharding == sharding
        assert [shard.data.shape[0] for shard in batch["data"].addressable_shards] == [2] * 4
        assert batch.lengths["data"].sharding.spec == P("batch")  # it has one axis
    for batch, (data, lengths) in zip(kept, expected, strict=True):
        assert np.array_equal(batch["data"], data) and np.array_equal(batch.lengths["data"], lengths)

with hr.DataLoader(dataset, batching=Pack(30, 4)) as loader:
    batch = next(iter(to_jax(loader, sharding)))
    assert batch["data"].sharding == batch.segment_ids.sharding == sharding
    assert isinstance(batch.packing.rows, np.ndarray) and isinstance(batch.lengths["data"], np.ndarray)

with hr.DataLoader(dataset, batching=FixedCount(8)) as loader:
    assert next(iter(to_jax(loader, jax.devices()[1])))["data"].devices() == {jax.devices()[1]}

with hr.DataLoader(dataset, batching=FixedCount(6)) as loader:
    try:
        next(iter(to_jax(loader, sharding)))
    except ConfigError as error:
        print(error)
"""


def test_batches_are_divided_among_devices():
    done = subprocess.run(
        [sys.executable, "-c", _SHARDED],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    assert "float32[6, " in done.stdout
    assert "evenly" in done.stdout

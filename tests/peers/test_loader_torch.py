"""The loader for torch: tensors over the same memory, torch's own loader around ours, copies that run ahead."""

import gc
import os
import signal
import subprocess
import sys
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace import StaticDataset  # noqa: E402
from headrace.adapters.torch.loaders import DeviceLoader, TorchLoader, as_tensors, to_device  # noqa: E402
from headrace.batching import Chunks, FixedCount, FrameBudget, Pack  # noqa: E402
from headrace.errors import ConfigError, HeadraceError, ResumeError, TransformError  # noqa: E402
from headrace.loading import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra


@pytest.fixture
def seqs():
    return [
        {"data": np.full((7 * i % 20 + 1, 2), i, np.float32), "classes": np.arange(7 * i % 20 + 1, dtype=np.int32)}
        for i in range(40)
    ]


def open_loader(seqs, **options):
    return DataLoader(StaticDataset(seqs, seq_ordering="random"), **{"batching": FrameBudget(40), **options})


def print_of(batch):
    arrays = {"data": np.asarray(batch["data"]), "classes": np.asarray(batch["classes"]).astype(np.int64)}
    arrays = {key: (value.dtype, value.tobytes()) for key, value in arrays.items()}
    lengths = {key: value.tolist() for key, value in batch.lengths.items()}
    return arrays, lengths, batch.tags, batch.position, batch.epoch, batch.num_frames, batch.padding_share


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batching", [FrameBudget(40), Pack(30, 2), Chunks(FixedCount(3), frames=5)])
def test_tensors_hold_what_the_arrays_hold(seqs, workers, batching):
    with open_loader(seqs, batching=batching) as loader:
        expected = [print_of(batch) for batch in loader]
    with open_loader(seqs, batching=batching, num_workers=workers) as loader:
        assert [print_of(batch) for batch in TorchLoader(loader)] == expected


def test_tensors_lie_over_the_memory_of_the_batch_and_keep_it(seqs):
    with open_loader(seqs, num_workers=1) as loader:
        batch = next(iter(loader))
        tensors = as_tensors(batch)
        assert tensors["data"].data_ptr() == batch["data"].ctypes.data
        content = batch["data"].copy()
        part = tensors["data"][0]
        del batch, tensors
        gc.collect()
        for _ in loader:  # would write over it, were it free
            pass
        assert np.array_equal(part.numpy(), content[0])


def test_packing_and_lengths_become_tensors(seqs):
    with open_loader(seqs, batching=Pack(30, 2)) as loader:
        batch = next(iter(TorchLoader(loader)))
    assert all(isinstance(value, torch.Tensor) for value in (batch.segment_ids, batch.positions))
    assert batch.lengths["data"].dtype == torch.int32


@pytest.mark.parametrize("dtype", ["int32", "uint16", "uint32"])
def test_classes_are_tensors_that_a_loss_and_an_embedding_take(dtype):
    seqs = [{"data": np.ones((3, 5), np.float32), "label": np.array(number % 5, dtype)} for number in range(8)]
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        found = [*TorchLoader(loader), *to_device(loader, "cpu")]
        shown = next(iter(loader))
    for batch in found:
        assert batch["label"].dtype == torch.int64
        torch.nn.functional.cross_entropy(batch["data"].mean(1), batch["label"]).item()
        torch.nn.Embedding(5, 2)(batch["label"])
        torch.nn.functional.one_hot(batch["label"], 5)
    assert shown["label"].dtype == dtype


def test_other_integers_keep_their_dtype_and_memory():
    seqs = [{key: np.full((3, 5), number, key) for key in ("uint8", "int8", "int16", "int64")} for number in range(4)]
    with DataLoader(StaticDataset(seqs), batching=FixedCount(4)) as loader:
        batch = next(iter(loader))
    for key, tensor in as_tensors(batch).items():
        assert str(tensor.dtype) == f"torch.{key}"
        assert tensor.data_ptr() == batch[key].ctypes.data


@pytest.mark.parametrize("causal", [False, True])
def test_what_attention_takes_is_made_of_tensors_as_of_arrays(seqs, causal):
    with open_loader(seqs, batching=Pack(30, 2)) as loader:
        for batch in loader:
            tensors = as_tensors(batch)
            mask, bounds = tensors.attention_mask(causal=causal), tensors.cu_seqlens
            assert (mask.dtype, bounds.dtype) == (torch.bool, torch.int32)
            assert np.array_equal(mask.numpy(), batch.attention_mask(causal=causal))
            assert np.array_equal(bounds.numpy(), batch.cu_seqlens)


def test_results_of_any_collate_are_looked_through():
    value = {"a": [np.zeros(3), ("b", np.ones(2, np.int64))], "c": np.array(["x"]), "d": 3}
    found = as_tensors(value)
    assert isinstance(found["a"][0], torch.Tensor)
    assert found["a"][1][1].dtype == torch.int64
    assert isinstance(found["c"], np.ndarray)
    assert found["d"] == 3


@pytest.mark.parametrize("array", [np.arange(3, dtype=">f4"), np.broadcast_to(np.float32(1), (3,))])
def test_arrays_that_torch_cannot_share_are_copied(array):
    assert np.array_equal(as_tensors(array).numpy(), array)


def test_torch_s_own_loader_can_be_put_around_it(seqs):
    with open_loader(seqs) as loader:
        expected = [batch.tags for batch in loader]
        loader.set_epoch(1)
        around = torch.utils.data.DataLoader(TorchLoader(loader), batch_size=None, collate_fn=lambda batch: batch)
        assert len(around) == len(expected)
        assert [batch.tags for batch in around] == expected


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_torch_around_it_are_refused(seqs):
    with open_loader(seqs) as loader:
        around = torch.utils.data.DataLoader(TorchLoader(loader), batch_size=None, num_workers=1)
        with pytest.raises(HeadraceError, match="num_workers=0"):
            next(iter(around))


def test_it_is_saved_and_loaded_as_a_stateful_loader(seqs):
    with open_loader(seqs) as loader:
        view = TorchLoader(loader)
        batches = [batch.tags for batch in view]
        view.set_epoch(1)
        iterator = iter(view)
        next(iterator), next(iterator)
        state = view.state_dict()
        with pytest.raises(ResumeError, match="too late"):
            view.load_state_dict(state)
    with open_loader(seqs) as loader:
        view = TorchLoader(loader)
        view.load_state_dict(state)
        assert [batch.tags for batch in view] == batches[2:]


def test_tensors_of_a_torch_dataset_go_through_a_collate_of_torch():
    items = [(torch.full((3,), i), i) for i in range(6)]

    class Items(torch.utils.data.Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, i):
            return items[i]

    for options in ({}, {"collate": torch.utils.data.default_collate}, {"num_workers": 1}):
        with DataLoader(Items(), batch_size=4, **options) as loader:
            x, y = as_tensors(next(iter(loader)))
        assert x.tolist() == [[0] * 3, [1] * 3, [2] * 3, [3] * 3]
        assert y.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("sampler", [torch.utils.data.SequentialSampler, torch.utils.data.RandomSampler])
def test_samplers_of_torch_say_the_order(sampler):
    items = list(range(10))
    torch.manual_seed(3)
    expected = list(sampler(items))
    torch.manual_seed(3)
    with DataLoader(items, batch_size=3, sampler=sampler(items), collate=list, seed_globals=False) as loader:
        assert [i for batch in loader for i in batch] == expected


def test_an_order_that_is_drawn_from_torchs_generator_is_that_of_the_seed_of_the_loader():
    items = list(range(40))

    def order(state, seed):
        torch.manual_seed(state)
        sampler = torch.utils.data.RandomSampler(items)
        with DataLoader(items, batch_size=3, sampler=sampler, collate=list, seed=seed) as loader:
            return [i for batch in loader for i in batch]

    assert order(1, seed=0) == order(2, seed=0) != order(1, seed=1)
    assert sorted(order(1, seed=0)) == items


def test_a_distributed_sampler_and_ranks_of_ours_are_two_levels():
    items = list(range(10))
    sampler = torch.utils.data.DistributedSampler(items, num_replicas=2, rank=1, shuffle=False)
    with pytest.raises(ConfigError, match="two levels"):
        DataLoader(items, batch_size=2, sampler=sampler, rank=1, world_size=2)
    with DataLoader(items, batch_size=2, sampler=sampler, remainder="keep", collate=list) as loader:
        assert [i for batch in loader for i in batch] == [1, 3, 5, 7, 9]


# --- copies to a device ---


class FakeEvent:
    def __init__(self, stream):
        self._stream, self._place = stream, len(stream.work) + stream.num_done

    def query(self):
        return self._stream.num_done >= self._place

    def synchronize(self):
        self._stream.run_until(self._place)


class FakeCopier:
    """A device whose stream does its work late: reads the source when it is made to, as a GPU does."""

    memory = None

    def __init__(self):
        self.work, self.num_done = [], 0
        self.sources, self.handed_over = [], 0

    def copy(self, tensor):
        copied = torch.full_like(tensor, -77)
        self.work.append((copied, weakref.ref(tensor)))
        self.sources.append(weakref.ref(tensor))
        return copied, tensor

    def record(self):
        return FakeEvent(self)

    def hand_over(self, event, tensors):
        assert tensors
        self.handed_over += 1
        event.synchronize()

    def run_until(self, place):
        while self.num_done < place:
            copied, source = self.work.pop(0)
            assert source() is not None, "memory was given up before it was copied"
            copied.copy_(source())
            self.num_done += 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_copies_ahead_deliver_what_the_loader_delivers(seqs, depth, workers):
    with open_loader(seqs) as loader:
        expected = [[print_of(batch) for batch in loader] for _ in range(2)]
    with open_loader(seqs, num_workers=workers, executor="thread") as loader:
        device = DeviceLoader(loader, FakeCopier(), depth)
        assert [[print_of(batch) for batch in device] for _ in range(2)] == expected


def test_no_more_than_depth_batches_are_ahead_and_memory_is_given_up_behind_the_copy(seqs):
    copier = FakeCopier()
    with open_loader(seqs) as loader:
        most = 0
        for number, _ in enumerate(DeviceLoader(loader, copier, 2)):
            gc.collect()
            alive = sum(source() is not None for source in copier.sources)
            most = max(most, alive)
            assert loader.position.position - number <= 3
        assert most <= 3 * 3  # three tensors a batch: two ahead, and the one that was handed over just now
    gc.collect()
    assert not any(source() is not None for source in copier.sources)
    assert copier.work == []


def test_leaving_early_waits_for_the_copies_that_were_begun(seqs):
    copier = FakeCopier()
    with open_loader(seqs) as loader:
        for _ in DeviceLoader(loader, copier, 3):
            break
        gc.collect()
        assert copier.work == []


def test_the_state_is_that_of_the_consumer_and_not_of_the_copies(seqs):
    with open_loader(seqs) as loader:
        expected = [batch.tags for batch in loader]
    for num_steps in range(len(expected) + 1):
        with open_loader(seqs) as loader:
            device = DeviceLoader(loader, FakeCopier(), 3)
            for _ in zip(range(num_steps), device, strict=False):
                pass
            state = device.state_dict()
        assert state["position"] == num_steps
        with open_loader(seqs) as loader:
            device = DeviceLoader(loader, FakeCopier(), 2)
            device.load_state_dict(state)
            assert device.state_dict() == state
            assert [batch.tags for batch in device] == expected[num_steps:]
            assert device.state_dict()["epoch"] == 2


def test_an_error_comes_at_its_place_in_the_stream(seqs):
    def fail(seq):
        return {**seq, "data": seq["data"][0] if seq["data"][0, 0] == 11 else seq["data"]}

    options = {"batching": FixedCount(2), "transform": fail}
    with DataLoader(StaticDataset(seqs), **options) as loader:
        found = []
        with pytest.raises((TransformError, HeadraceError)):
            found.extend(batch.position for batch in DeviceLoader(loader, FakeCopier(), 3))
    assert found == [0, 1, 2, 3, 4]


def test_on_the_cpu_nothing_is_copied(seqs):
    with open_loader(seqs, num_workers=1) as loader:
        expected = [print_of(batch) for batch in loader]
        loader.set_epoch(1)
        device = to_device(loader, "cpu")
        iterator = iter(device)
        assert print_of(next(iterator)) == expected[0]
        assert device.state_dict()["position"] == 1
        assert [print_of(batch) for batch in iterator] == expected[1:]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_there_is_not_is_refused(seqs):
    with open_loader(seqs) as loader:
        for device in ("cuda", "meta"):
            with pytest.raises(ConfigError, match=device):
                to_device(loader, device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_copies_to_a_gpu_deliver_what_the_loader_delivers(seqs):
    with open_loader(seqs * 20) as loader:
        expected = [print_of(batch) for batch in loader]
    with open_loader(seqs * 20, num_workers=2) as loader:
        found = []
        for batch in to_device(loader, "cuda"):
            assert batch["data"].is_cuda
            scaled = batch["data"] * 2  # work of the consumer's stream, right behind the copy
            assert torch.equal(scaled.cpu(), 2 * batch["data"].cpu())
            arrays = {key: value.cpu() for key, value in batch.items()}
            lengths = {key: value.cpu() for key, value in batch.lengths.items()}
            batch.arrays, batch.lengths = arrays, lengths
            found.append(print_of(batch))
    assert found == expected


# --- real ranks ---

_RANK = """
import json, os, signal, sys
import numpy as np, torch, torch.distributed as dist
import headrace as hr
from headrace.batching import Buckets, FrameBudget

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=int(sys.argv[2]), world_size=int(sys.argv[3]))
state_path, kill_at = sys.argv[4], int(sys.argv[5])
seqs = [{"data": np.full((i * 7 % 23 + 1, 2), i, np.float32)} for i in range(300)]
loader = hr.DataLoader(
    hr.StaticDataset(seqs, seq_ordering="random"), batching=Buckets(FrameBudget(60)), num_workers=1, window_seqs=64
)
assert loader.ranks.world_size == dist.get_world_size()
if os.path.exists(state_path):
    loader.load_state_dict(json.load(open(state_path)))
for step, batch in enumerate(loader):
    if step == kill_at:
        dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(1)
    dist.all_reduce(total)  # hangs if one rank has a step less
    print(batch.position, float(batch["data"].sum()), flush=True)
    if dist.get_rank() == 0:
        with open(state_path, "w") as file:
            json.dump(loader.state_dict(), file)
dist.barrier()
loader.close()
"""


def _run_ranks(tmp_path, name, world_size, state, kill_at=10**6):
    environ = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                _RANK,
                str(tmp_path / name),
                *map(str, (rank, world_size, state, kill_at)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
        )
        for rank in range(world_size)
    ]
    lines = []
    for process in ranks:
        out, err = process.communicate(timeout=240)
        assert process.returncode == (0 if kill_at == 10**6 else -signal.SIGKILL), err
        lines.append(out.splitlines())
    return lines


@pytest.mark.long
def test_real_ranks_have_equal_steps_and_go_on_as_fewer_after_being_killed(tmp_path):
    (whole,) = _run_ranks(tmp_path, "whole", 1, tmp_path / "unused")
    state = tmp_path / "state"
    before = _run_ranks(tmp_path, "three", 3, state, kill_at=4)
    assert [len(lines) for lines in before] == [4, 4, 4]
    after = _run_ranks(tmp_path, "two", 2, state)
    assert len(after[0]) == len(after[1]) == (len(whole) - 12) // 2
    found = [line for lines in (*before, *after) for line in lines]
    assert sorted(found, key=lambda line: int(line.split()[0])) == whole[: len(found)]

"""Copies of torch from the memory of workers: on a fake device everywhere, and on a real one where there is one."""

from __future__ import annotations

import contextlib
import logging

import numpy as np
import pytest
from devices import FakeDevice

torch = pytest.importorskip("torch")

from headrace import StaticDataset  # noqa: E402
from headrace.adapters.torch.loaders import CudaCopier, DeviceLoader, TorchLoader, _CudaHost, to_device  # noqa: E402
from headrace.batching import Buckets, FixedCount, FrameBudget  # noqa: E402
from headrace.loading import DataLoader  # noqa: E402

pytestmark = pytest.mark.extra


def widen(seq):
    return {**seq, "data": seq["data"] + np.arange(64, dtype=np.float32)}


def tensors(seqs):
    return {"data": torch.from_numpy(np.concatenate([seq["data"] for seq in seqs]))}


def open_loader(**options):
    lengths = [37 * i % 50 + 20 for i in range(60)]
    seqs = [{"data": np.full((length, 1), i, np.float32)} for i, length in enumerate(lengths)]
    return DataLoader(StaticDataset(seqs), **{"batching": FixedCount(3), "transform": widen, **options})


class FakeCopier:
    """Copies tensors as `CudaCopier` does, with the device of the tests in place of CUDA."""

    def __init__(self):
        self.device = FakeDevice()
        self.memory = self.device.memory

    def copy(self, tensor):
        is_pinned = tensor.is_contiguous() and self.memory.covers(tensor.data_ptr(), tensor.nbytes)
        source = tensor if is_pinned else tensor.clone()
        self.device.num_in_place += is_pinned
        self.device.num_staged += not is_pinned
        copied = torch.full_like(tensor, 77)
        self.device.work.append((copied.numpy(), source.data_ptr(), source.nbytes))
        return copied, source

    def record(self):
        return self.device.send([]).event

    def hand_over(self, event, tensors):
        event.synchronize()


def test_a_plain_loader_after_a_device_has_tensors_in_memory_that_is_not_locked():
    """`to(device, non_blocking=True)` reads from page-locked memory when the tensor is gone, and a worker writes."""
    copier = FakeCopier()
    with open_loader(num_workers=2) as loader:
        next(iter(DeviceLoader(loader, copier, 2)))
        assert copier.memory.num_bytes
        for batch in TorchLoader(loader):
            assert not copier.memory.covers(batch["data"].data_ptr(), batch["data"].nbytes)
        assert copier.memory.num_bytes == 0


@pytest.mark.parametrize("collate", [None, tensors])
def test_tensors_are_copied_from_where_workers_wrote(collate):
    with open_loader(collate=collate) as loader:
        expected = [np.asarray(batch["data"]).tobytes() for batch in loader]
    copier = FakeCopier()
    with open_loader(collate=collate, num_workers=2) as loader:
        device = DeviceLoader(loader, copier)
        for _ in range(2):
            assert [batch["data"].numpy().tobytes() for batch in device] == expected
        assert copier.device.host.locked
    assert copier.device.num_staged == 0
    assert copier.device.num_in_place == len(expected) * 2 * (1 if collate else 2)
    assert copier.device.host.locked == {}


class FakeRuntime:
    """The functions of the CUDA runtime that are used, which say by a number what became of them."""

    def __init__(self):
        self.calls, self.code = [], 0

    def cudaHostRegister(self, address, num_bytes, flags):
        self.calls.append(("register", address, num_bytes, flags))
        return self.code

    def cudaHostUnregister(self, address):
        self.calls.append(("unregister", address))
        return self.code

    def synchronize(self):
        self.calls.append(("wait",))


def test_the_runtime_is_called_with_what_it_wants_and_its_errors_are_raised(monkeypatch):
    runtime = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    host = _CudaHost(torch.device("cpu"), runtime)
    host.register(4096, 8192)
    host.wait()
    host.unregister(4096)
    assert runtime.calls == [("register", 4096, 8192, 1), ("wait",), ("unregister", 4096)]
    runtime.code = 712
    for call in (lambda: host.register(4096, 8192), lambda: host.unregister(4096)):
        with pytest.raises(RuntimeError, match="error 712"):
            call()


# --- a real device ---

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def sums_of(loader):
    return [(batch["data"].double().sum().item(), tuple(batch["data"].shape), batch.tags) for batch in loader]


@needs_gpu
@pytest.mark.parametrize("in_place", [True, False])
def test_a_gpu_gets_what_the_loader_delivers(in_place, caplog):
    with open_loader(batching=Buckets(FrameBudget(200))) as loader:
        expected = [(batch["data"].astype(np.float64).sum(), batch["data"].shape, batch.tags) for batch in loader]
    copier = CudaCopier(torch.device("cuda"), in_place)
    with caplog.at_level(logging.WARNING), open_loader(batching=Buckets(FrameBudget(200)), num_workers=2) as loader:
        device = DeviceLoader(loader, copier, 3)
        for _ in range(3):
            loader.set_epoch(1)
            assert sums_of(device) == expected
        assert (copier._pinned.num_bytes > 0) == in_place
    assert copier._pinned.num_bytes == 0
    assert caplog.records == []


@needs_gpu
def test_memory_of_workers_is_page_locked_for_torch_until_the_loader_is_closed():
    copier = CudaCopier(torch.device("cuda"))
    with open_loader(num_workers=1) as loader:
        loader.watch_memory(copier.memory)
        tensor = torch.from_numpy(next(iter(loader))["data"])
        assert tensor.is_pinned()
        copied, source = copier.copy(tensor)
        assert source is tensor
        copier.record().synchronize()
        assert torch.equal(copied.cpu(), tensor)
    assert not tensor.is_pinned()
    assert torch.equal(copied.cpu(), tensor)  # it is still mapped


@needs_gpu
def test_a_failure_to_lock_leaves_no_error_for_the_next_kernel():
    copier = CudaCopier(torch.device("cuda"))
    host = copier._pinned._host
    memory = np.zeros(1 << 16, np.uint8)
    page = -(-memory.ctypes.data // 4096) * 4096
    host.register(page, 4096)
    with pytest.raises(RuntimeError):
        host.register(page, 4096)
    assert torch.ones(5, device="cuda").sum().item() == 5
    host.unregister(page)
    with pytest.raises(RuntimeError):
        host.unregister(page)
    assert torch.ones(5, device="cuda").sum().item() == 5


@needs_gpu
def test_nothing_is_written_over_while_a_slow_stream_still_copies():
    with open_loader(num_workers=2) as loader:
        expected = [batch["data"].copy() for batch in loader]
        loader.set_epoch(1)
        copier = CudaCopier(torch.device("cuda"))
        busy = torch.zeros(1 << 20, device="cuda")
        found = []
        for batch in DeviceLoader(loader, copier, 4):
            with torch.cuda.stream(copier._stream):  # the copies of later batches have to wait behind this
                for _ in range(20):
                    busy += 1
            found.append(batch["data"])
        assert all(np.array_equal(one.cpu().numpy(), other) for one, other in zip(found, expected, strict=True))


@needs_gpu
def test_to_device_takes_any_cuda_device():
    with open_loader(num_workers=1) as loader:
        batch = next(iter(to_device(loader, f"cuda:{torch.cuda.device_count() - 1}")))
        assert batch["data"].device.index == torch.cuda.device_count() - 1

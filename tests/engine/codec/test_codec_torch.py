"""torch tensors come back as tensors over the same memory."""

from __future__ import annotations

import numpy as np
import pytest
from codec_cases import PlainSlot, Seq

from headrace.engine.codec.codec import decode, encode

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.extra

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64"]
RARER_DTYPES = [name for name in ("float8_e4m3fn", "float8_e5m2", "uint16", "uint64") if hasattr(torch, name)]


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor


def round_trip(value):
    slot = PlainSlot(1 << 16)
    header = encode(value, slot)
    return decode(header, slot.buffer), slot.buffer


def is_in(tensor, buffer):
    start = buffer.__array_interface__["data"][0]
    return start <= tensor.data_ptr() < start + buffer.nbytes


def same(one, other):
    return (
        type(one) is type(other) and one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    )


@pytest.mark.parametrize("name", DTYPES + RARER_DTYPES)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 2)])
def test_a_tensor_comes_back_over_the_same_memory(name, shape):
    bits = torch.arange(64, dtype=torch.float32).to(getattr(torch, name))
    tensor = bits[: int(np.prod(shape))].reshape(shape)
    decoded, buffer = round_trip(tensor)
    assert decoded.dtype == tensor.dtype
    assert decoded.shape == tensor.shape
    assert decoded.to(torch.complex128).tolist() == tensor.to(torch.complex128).tolist()
    assert is_in(decoded, buffer) or tensor.numel() == 0


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_strided_expanded_and_transposed_tensors_come_back(name):
    base = torch.arange(24.0).reshape(4, 6).to(getattr(torch, name))
    value = {"every other": base[::2, 1::2], "expanded": base[:, :1].expand(4, 3), "transposed": base.T}
    decoded, buffer = round_trip(value)
    assert all(same(tensor, decoded[key]) and is_in(decoded[key], buffer) for key, tensor in value.items())
    assert decoded["transposed"].stride() == base.T.stride()


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_lists_of_like_sequences_of_tensors_come_back(name):
    dtype = getattr(torch, name)
    seqs = [{"data": torch.full((i, 3), float(i), dtype=dtype), "n": torch.tensor(i), "t": str(i)} for i in range(5)]
    decoded, buffer = round_trip(seqs)
    assert [list(seq) for seq in decoded] == [["data", "n", "t"]] * 5
    for one, other in zip(seqs, decoded, strict=True):
        assert same(one["data"], other["data"])
        assert same(one["n"], other["n"])
        assert one["t"] == other["t"]
        assert is_in(other["n"], buffer)


def test_lists_of_tensors_that_differ_come_back():
    value = [torch.ones(2), torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 2), torch.ones(2, requires_grad=True)]
    decoded, _ = round_trip(value)
    assert all(same(one, other) for one, other in zip(value, decoded, strict=True))
    assert [tensor.requires_grad for tensor in decoded] == [False, False, False, True]


def test_tensors_in_records_and_in_pickled_objects_share_the_memory():
    value = [Seq(torch.arange(5)), Holder(torch.ones(3, dtype=torch.bfloat16))]
    (seq, holder), buffer = round_trip(value)
    assert same(seq.data, value[0].data)
    assert same(holder.tensor, value[1].tensor)
    assert is_in(seq.data, buffer)
    assert is_in(holder.tensor, buffer)


def test_a_tensor_in_the_slot_is_not_copied():
    slot = PlainSlot(1 << 16)
    _, memory = slot.reserve(4000)
    tensor = torch.from_numpy(memory.view("f4")).reshape(10, 100)
    tensor.zero_()
    header = encode({"x": tensor}, slot)
    tensor.fill_(3)
    assert same(decode(header, slot.buffer)["x"], tensor)
    assert slot.used < 5000


def test_what_numpy_cannot_hold_is_pickled_by_torch():
    value = {
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "with a gradient": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
    }
    noted = torch.ones(2)
    noted.note = "kept"
    decoded, _ = round_trip({**value, "noted": noted})
    assert decoded["noted"].note == "kept"
    assert decoded["sparse"].is_sparse
    assert torch.equal(decoded["sparse"].to_dense(), torch.eye(3))
    assert type(decoded["parameter"]) is torch.nn.Parameter
    assert decoded["with a gradient"].requires_grad
    assert same(decoded["conjugate"].resolve_conj(), value["conjugate"].resolve_conj())

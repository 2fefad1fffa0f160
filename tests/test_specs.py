"""`DataSpec`: what may be said of a data key, also by a file that was damaged; and which tensors are plain numbers."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.specs import DataSpec, is_plain_tensor

_SIZES = st.none() | st.integers(0, 2**62)
_SPECS = st.builds(
    DataSpec,
    dtype=st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"]),
    shape=st.lists(st.none() | st.integers(0, 9), max_size=4).map(tuple),
    sparse=st.booleans(),
    dim=_SIZES,
    has_time=st.booleans(),
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@given(_SPECS)
def test_a_spec_goes_to_json_and_back(spec):
    assert DataSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@given(_SPECS, st.sampled_from(["dtype", "shape", "sparse", "dim", "has_time"]), _JSON | st.integers(-(2**70), 2**70))
def test_whatever_a_file_says_is_a_spec_of_arrays_or_refused(spec, name, value):
    try:
        found = DataSpec.from_json({**spec.to_json(), name: value})
    except ConfigError:
        return
    assert np.dtype(found.dtype).kind in "biufc"
    assert found.dim is None or (type(found.dim) is int and 0 <= found.dim < 2**63)
    np.empty(tuple(0 if size is None else min(size, 1) for size in found.shape), found.dtype)
    assert found.to_json() == {**spec.to_json(), name: list(value) if name == "shape" else value}


@given(_JSON)
def test_what_is_no_spec_at_all_is_refused(value):
    with pytest.raises(ConfigError, match="not the layout of a data key"):
        DataSpec.from_json(value)


@pytest.mark.parametrize("dtype", ["object", ">f4", "O", "<M8[s]", "V8", "U4", "no such"])
def test_dtypes_that_bytes_of_a_file_cannot_be_are_refused(dtype):
    with pytest.raises(ConfigError):
        DataSpec.from_json({**DataSpec("float32").to_json(), "dtype": dtype})


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_plain_tensor_is_of_exactly_the_class_and_nothing_else_than_numbers_in_memory():
    torch = pytest.importorskip("torch")
    numbers = torch.arange(6.0)
    assert is_plain_tensor(numbers)
    assert is_plain_tensor(numbers.reshape(2, 3).T)
    assert is_plain_tensor(numbers.to(torch.bfloat16))
    others = [
        numbers.numpy(),
        torch.nn.Parameter(numbers, requires_grad=False),
        numbers.clone().requires_grad_(),
        numbers.to_sparse(),
        numbers.to("meta"),
        torch.nested.nested_tensor([numbers, numbers[:2]]),
    ]
    assert not any(map(is_plain_tensor, others))

"""What all rooms share: errors, and checks of what users give."""

import pickle

import numpy as np
import pytest

from headrace.errors import ConfigError, StalledError, WorkerDiedError, check_count


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_an_integer_of_any_kind_is_returned_as_an_int(value):
    number = check_count("n", value)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize("value", [2.0, "2", None, True, np.True_, [2]])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(ConfigError, match="buffer_size must be an integer, got"):
        check_count("buffer_size", value)


@pytest.mark.parametrize(
    ("value", "bounds", "text"),
    [
        (-1, {}, "n must be at least 0, got -1"),
        (0, {"minimum": 1}, "n must be at least 1, got 0"),
        (5, {"maximum": 4}, r"n must be in 0\.\.4, got 5"),
        (-9, {"minimum": -8, "maximum": 8}, r"n must be in -8\.\.8, got -9"),
    ],
)
def test_an_integer_out_of_bounds_is_refused(value, bounds, text):
    with pytest.raises(ConfigError, match=text):
        check_count("n", value, **bounds)
    for legal in (bounds.get("minimum", 0), bounds.get("maximum", 2**70)):
        assert check_count("n", legal, **bounds) == legal


@pytest.mark.parametrize("kind", [StalledError, WorkerDiedError])
def test_what_torch_raises_as_a_runtime_error_is_one(kind):
    with pytest.raises(RuntimeError) as caught:
        raise pickle.loads(pickle.dumps(kind("worker 3 has ended", where="ticket 1", fix="see its log")))
    assert type(caught.value) is kind
    assert str(caught.value) == "worker 3 has ended\n  where: ticket 1\n  fix: see its log"

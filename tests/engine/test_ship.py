"""What goes to a worker arrives as it was, and what cannot go is named."""

from __future__ import annotations

import contextlib
import io
import pickle
import socket
import sys
import threading
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.dataloader2.replica import pickle_bounded
from headrace.dataloader2.transport.worker_error import CarriedError
from headrace.engine.codec.objects import _pickled
from headrace.engine.user.failure import Failure
from headrace.engine.user.ship import LARGE_BYTES, ship, ship_payload, unship
from headrace.errors import ConfigError


class Holder:
    def __init__(self, **attributes: object) -> None:
        vars(self).update(attributes)


class WithoutLock(Holder):
    """Leaves its lock out, as it should."""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "lock"}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_plain_values_arrive_as_they_were(value: object) -> None:
    assert unship(ship(value)) == value
    assert unship(ship_payload(value)) == value
    assert type(unship(ship_payload(value))) is type(value)


def test_closures_and_lambdas_arrive() -> None:
    factor = np.arange(3)
    assert np.array_equal(unship(ship(lambda number: factor * number))(2), [0, 2, 4])


CASES = ["lock", "attribute", "generator", "open for reading", "socket", "thread"]


def _make(case: str, folder: Path, stack: contextlib.ExitStack) -> Any:
    lock = threading.Lock()
    path = folder / "notes"
    path.touch()
    made: dict[str, Callable[[], Any]] = {
        "lock": lambda: lock,
        "attribute": lambda: Holder(inner=Holder(guard=lock)),
        "generator": lambda: [(number for number in range(3))],
        "open for reading": lambda: Holder(log=stack.enter_context(path.open("rb"))),
        "socket": lambda: Holder(link=stack.enter_context(socket.socket())),
        "thread": lambda: Holder(worker=threading.Thread()),
    }
    return made[case]()


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_carried_is_refused(case: str, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack, pytest.raises(ConfigError) as caught:
        ship(_make(case, tmp_path, stack))
    assert "executor='thread'" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def through_a_file(value: object) -> Any:
    return pickle.loads(pickle_bounded(value, max_bytes=1 << 20))


def through_a_failure(value: object) -> Any:
    return Failure.from_bytes(Failure.of(Carries(value)).to_bytes()).exception.args[0]


def through_an_error_of_a_pipe(value: object) -> Any:
    return CarriedError.of(Carries(value), "worker process 0").raisable().__cause__.args[0]


class Carries(Exception):
    pass


@pytest.mark.parametrize(
    "sent",
    [
        lambda value: unship(ship(value)),
        lambda value: unship(ship_payload(value)),
        lambda value: pickle.loads(_pickled(value)[0]),
        through_a_file,
        through_a_failure,
        through_an_error_of_a_pipe,
    ],
    ids=["job", "payload", "result", "snapshot", "failure", "error of a pipe"],
)
def test_functions_that_travel_by_value_keep_their_files_and_lines(sent: Callable[[object], Any]) -> None:
    text = "def outer():\n    def inner():\n        return 1 / 0\n    return inner()\n"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "somewhere/script.py", "exec"), namespace)
    outer = sent(namespace["outer"])
    with pytest.raises(ZeroDivisionError) as caught:
        outer()
    places = [(Path(str(entry.path)).name, entry.lineno + 1) for entry in caught.traceback[1:]]
    assert places == [("script.py", 4), ("script.py", 3)]


def test_an_attribute_that_is_left_out_may_hold_anything() -> None:
    lock = threading.Lock()
    assert unship(ship(WithoutLock(lock=lock, number=3))).number == 3
    with pytest.raises(ConfigError, match="lock"):
        ship(WithoutLock(lock=lock, number=3, other=lock))


def test_what_holds_its_bytes_itself_is_carried() -> None:
    assert unship(ship(io.BytesIO(b"abc"))).read() == b"abc"
    assert unship(ship(io.StringIO("abc"))).read() == "abc"


def test_a_large_parcel_warns() -> None:
    table = np.zeros(LARGE_BYTES + 1, np.uint8)
    with pytest.warns(UserWarning, match="job takes 10 MB"):
        ship(Holder(name="x", work=lambda: table))


def test_a_parcel_that_is_not_large_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ship(np.zeros(LARGE_BYTES - 1000, np.uint8))


def test_what_a_module_without_an_origin_defines_travels_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("made_by_hand")
    monkeypatch.setitem(sys.modules, "made_by_hand", module)
    exec("class Seq:\n    number = 7\ndef make():\n    return Seq()", vars(module))
    parcel = ship(module.make)
    assert "made_by_hand" not in cloudpickle.list_registry_pickle_by_value()
    monkeypatch.delitem(sys.modules, "made_by_hand")
    assert unship(parcel)().number == 7


def test_a_module_that_a_worker_cannot_import_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("def work():\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import only_here

    parcel = ship(only_here.work)
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(ConfigError, match="cannot import the module 'only_here'"):
        unship(parcel)


def test_things_of_main_can_be_pickled_plainly_where_they_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer_main, worker_main = types.ModuleType("__main__"), types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", trainer_main)
    exec("class Seq:\n    number = 7\nother = Seq()\ndef make():\n    return Seq()", vars(trainer_main))
    for parcel in (ship(trainer_main.make), ship_payload(trainer_main.make)):
        monkeypatch.setitem(sys.modules, "__main__", worker_main)
        make = unship(parcel)
        plain = pickle.dumps(make())
        monkeypatch.setitem(sys.modules, "__main__", trainer_main)
        assert len(plain) < 100
        assert type(pickle.loads(plain)) is trainer_main.Seq

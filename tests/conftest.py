"""What holds for every test."""

import gc
import importlib.util
import itertools
import os
import re
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import examples_of_laws  # noqa: F401  # registers and loads Hypothesis' profiles
from headrace.engine.process.warden_client import join_warden


def pytest_configure(config: pytest.Config) -> None:
    """Let SIGINT and SIGHUP interrupt, for this process and those it starts; forgive other libraries their open pipes.

    A shell that runs a job in the background lets it ignore SIGINT, `nohup` lets it ignore SIGHUP, and what tests a
    Ctrl-C or the end of a terminal would then wait for ever.

    One of the libraries that come with torch now and then leaves a pipe open, and whatever test runs when that is
    collected would be blamed for it. Where they are not installed, a file that is left open is an error.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if importlib.util.find_spec("torch") is not None:
        open_pipe = "unclosed file <_io.(BufferedReader|FileIO) name=[0-9]+"
        config.addinivalue_line("filterwarnings", f"ignore:{open_pipe}:ResourceWarning")


_DEADLINE_SECONDS = 120.0  # only for hangs


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    """Return what looks again and again, a deadline long: only for what has no descriptor to wait on."""

    def wait(condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        pause = threading.Event()
        while not condition():
            assert time.monotonic() < deadline, what
            pause.wait(0.002)

    return wait


# Whole folders that need optional packages; and what the next version of the library will not have
_HERE = Path(__file__).parent
_MARKED = [
    ("adapters/|clusters/|peers/|torch_loader/", pytest.mark.extra),
    (".*_shar_", pytest.mark.long),
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to `make test-long` what a product of parameters adds to its pairs; repeat once what says so."""
    products = defaultdict(list)
    for item in items:
        name = item.path.relative_to(_HERE).as_posix()
        for pattern, marker in _MARKED:
            if re.match(pattern, name):
                item.add_marker(marker)
        if item.get_closest_marker("kernel_timing"):
            item.add_marker(pytest.mark.flaky(reruns=1))
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            products[item.path, item.cls, item.originalname].append(item)
    for product in products.values():
        kept = _pairs(product)
        if sample := product[0].get_closest_marker("sample"):
            kept = kept[:: -(-len(kept) // sample.args[0])]
        for item in set(product).difference(kept):
            item.add_marker(pytest.mark.long)


def _pairs(product: list[pytest.Function]) -> list[pytest.Function]:
    """Return tests that try each pair of values of two parameters, chosen greedily; of one parameter, all."""
    pairs = [set(itertools.combinations(sorted(test.callspec.indices.items()), 2)) for test in product]
    missing, left, kept = set().union(*pairs), list(range(len(product))), []
    if not missing:
        return product
    while missing:
        best = max(left, key=lambda number: len(pairs[number] & missing))
        missing -= pairs[best]
        left.remove(best)
        kept.append(best)
    return [product[number] for number in sorted(kept)]


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup() -> None:
    """Let workers of several tests come from one process, see `warm_workers`: they inherit the same environment."""
    os.environ["PYTEST_CURRENT_TEST"] = "one of many"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call() -> None:
    """See above."""
    os.environ["PYTEST_CURRENT_TEST"] = "one of many"


@pytest.fixture(scope="module")
def warm_workers() -> Iterator[None]:
    """Keep the process that workers come from, for a module of which many tests start some."""
    pytest_pyfunc_call()
    warden, channel = join_warden()
    yield
    channel.close()
    warden.leave()


@pytest.fixture(scope="module", autouse=True)
def _set_apart() -> None:
    """Set apart what other modules have made: fixtures collect garbage twice a test, to see what it leaves behind."""
    gc.collect()
    gc.freeze()

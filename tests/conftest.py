"""What holds for every test."""

import gc
import importlib.util
import signal
import threading
import time
from collections.abc import Callable

import hypothesis
import pytest

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("headrace", deadline=None)
# The same cases in each run, by `--hypothesis-profile=repeatable`: no change is refused for what is not its own.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.load_profile("headrace")


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


_DEADLINE_SECONDS = 120.0


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


def pytest_collection_finish() -> None:
    """Set apart what collecting has made: what a test leaves behind is looked for by collections, two for each test."""
    gc.collect()
    gc.freeze()

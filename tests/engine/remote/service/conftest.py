"""A service in a thread of this process, and trainers that use it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from headrace.engine.process.proc_tree import descendants_of
from headrace.engine.remote.service import Service

SECRET = "of no use to anybody else"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """Return a service of two processes for each recipe."""
    before = set(descendants_of(os.getpid()))
    service = Service("127.0.0.1", 0, SECRET, num_workers=2, max_bytes=64 << 20)
    thread = threading.Thread(target=service.serve)
    thread.start()
    yield service
    service.stop()
    thread.join()
    service.close()
    assert not set(descendants_of(os.getpid())) - before, "processes are left"


@pytest.fixture
def address(service: Service, wait_until: Callable[[Callable[[], bool], str], None]) -> Iterator[str]:
    """Return its address; in the end, it has forgotten who used it."""
    yield f"127.0.0.1:{service.port}"
    wait_until(lambda: service.report().num_connected == 0 and service.report().num_bytes == 0, "it keeps something")

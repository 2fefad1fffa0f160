"""A process that is forked off between two fetches, and what it must not do to its parent's connections."""

from __future__ import annotations

import random
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers import FileServer, nothing_left

DATA = random.Random(1).randbytes(50_000)

# A store as fsspec's own are: one connection that is kept, and which a finalizer closes, with a word of goodbye, as TLS
# has it. What fsspec needs for HTTP and S3 is not always installed.
_STORE = """
import asyncio, gc, os, sys, warnings, weakref
import fsspec
from fsspec.asyn import AsyncFileSystem
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: that is what is tried here

class Store(AsyncFileSystem):
    protocol = "talk"
    connection = None

    async def _ask(self, question):
        if self.connection is None:
            self.connection = await asyncio.open_connection("127.0.0.1", PORT)
            self.itself = self  # a cycle, so that the collector ends it
            weakref.finalize(self, self.say_goodbye, self.connection[1])
        reader, writer = self.connection
        writer.write(question.encode() + b"\\n")
        return await reader.readexactly(int(await reader.readline()))

    async def _info(self, path, **kwargs):
        return {"name": path, "type": "file", "size": int(await self._ask("size"))}

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        return await self._ask(f"{start} {end}")

    @staticmethod
    def say_goodbye(writer):
        writer.write(b"goodbye of %d\\n" % os.getpid())
        writer.close()

fsspec.register_implementation("talk", Store)
"""

_FORKS = """
from headrace.files.fetch.fetch import FetchOptions, fetch_to, stat_source
url, part, end = sys.argv[1:]
options = FetchOptions(timeout_seconds=20, num_tries=1)
fetch_to(url, part, stat_source(url), options=options)
child = os.fork()
if not child:
    try:
        fetch_to(url, part + "-child", stat_source(url), options=options)
        gc.collect()
        fetch_to(url, part + "-child", stat_source(url), options=options)
        if end == "exit":
            sys.exit(0)
        os._exit(0)
    except Exception:
        import traceback
        traceback.print_exc()
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
fetch_to(url, part, stat_source(url), options=options)
print("good")
"""


class _Talk(socketserver.ThreadingTCPServer):
    """Answers questions about the data, line by line."""

    daemon_threads = False
    block_on_close = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.heard: list[tuple[int, str]] = []  # connection, question
        self.num_connections = 0


class _Answers(socketserver.StreamRequestHandler):
    server: _Talk

    def handle(self) -> None:
        self.server.num_connections += 1
        connection = self.server.num_connections
        for line in self.rfile:
            question = line.decode().strip()
            self.server.heard.append((connection, question))
            if question == "size":
                answer = str(len(DATA)).encode()
            elif question.startswith("goodbye"):
                return
            else:
                start, end = map(int, question.split())
                answer = DATA[start:end]
            self.wfile.write(b"%d\n%b" % (len(answer), answer))


@pytest.fixture
def talk() -> Iterator[_Talk]:
    with nothing_left(), _Talk() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _run(program: str, url: str, part: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program, url, str(part), end], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("good\n", "")
    assert Path(f"{part}-child").read_bytes() == part.read_bytes() == DATA


@pytest.mark.parametrize("end", ["exit", "_exit"])
def test_a_forked_child_closes_none_of_its_parent_s_connections(talk: _Talk, tmp_path: Path, end: str) -> None:
    program = _STORE.replace("PORT", str(talk.server_address[1])) + _FORKS
    _run(program, "talk://a", tmp_path / "part", end)
    # The parent has the first connection and asks all of its questions there; the child has the second.
    questions = [question for connection, question in talk.heard if connection == 1]
    assert talk.num_connections == 2
    assert [question for question in questions if not question.startswith("goodbye")] == questions[: len(questions) - 1]
    assert len(questions) == 2 * 3 + 1
    assert questions.count("size") == 4


@pytest.mark.extra
@pytest.mark.parametrize("end", ["exit", "_exit"])
def test_a_forked_child_closes_none_of_its_parent_s_web_connections(tmp_path: Path, end: str) -> None:
    pytest.importorskip("aiohttp")
    with FileServer({"a": DATA}) as server:
        _run(
            "import gc, os, sys, warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n" + _FORKS,
            server.url("a"),
            tmp_path / "part",
            end,
        )


def test_a_fork_before_any_fetch_changes_nothing(talk: _Talk, tmp_path: Path) -> None:
    program = _STORE.replace("PORT", str(talk.server_address[1])) + _FORKS
    program = program.replace("fetch_to(url, part, stat_source(url), options=options)\nchild", "child")
    _run(program, "talk://a", tmp_path / "part", "exit")

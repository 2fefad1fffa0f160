"""What comes through a shared service is what a plain loop gives, whoever else uses it, and is made once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from headrace.engine import Engine, EngineOptions, Job, Raising, Restarting, Skipping, WorkerInfo, get_worker_info
from headrace.engine.remote import Tls
from headrace.engine.remote.handshake import introduce
from headrace.engine.remote.service import Service, SharedService
from headrace.errors import ConfigError, WorkerDiedError

SECRET = "of no use to anybody else"
NUM_ITEMS = 40
WaitUntil = Callable[[Callable[[], bool], str], None]


class Items:
    """Writes down what is read."""

    def __init__(self, log: Path) -> None:
        self.log = str(log)

    def __len__(self) -> int:
        return NUM_ITEMS

    def __getitem__(self, idx: int) -> dict[str, Any]:
        with open(self.log, "a") as file:
            file.write(f"{idx}\n")
        return {"x": np.full(2000, float(idx))}


def add_noise(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"x": features["x"] + rng.standard_normal(2000)}


def open_loader(log: Path, address: str | None, transform: Any = add_noise, **options: Any) -> hr.DataLoader:
    workers: dict[str, Any] = {"num_workers": 0}
    if address is not None:
        workers = {"num_workers": 2, "executor": hr.SharedService(address, secret=SECRET, **options)}
    return hr.DataLoader(Items(log), batch_size=4, shuffle=True, seed=1, transform=transform, **workers)


def read(loader: hr.DataLoader, num_epochs: int = 1) -> list[Any]:
    return [batch["x"].copy() for _ in range(num_epochs) for batch in loader]


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture
def expected(tmp_path: Path) -> list[Any]:
    with open_loader(tmp_path / "plain", None) as loader:
        return read(loader, 2)


def in_threads(*functions: Callable[[], object]) -> None:
    errors: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_three_trainings_at_once_have_the_stream_and_each_batch_is_made_once(
    tmp_path: Path, address: str, service: Service, expected: list[Any]
) -> None:
    log = tmp_path / "log"
    loaders = [open_loader(log, address) for _ in range(3)]
    barrier = threading.Barrier(3)

    def train(loader: hr.DataLoader) -> None:
        with loader:
            found = read(loader, 2)
            barrier.wait()
            assert_equal(found, expected)
            assert service.cache.num_bytes <= service.cache.max_bytes

    in_threads(*[lambda loader=loader: train(loader) for loader in loaders])  # type: ignore[misc]
    counts = Counter(log.read_text().split())
    assert sorted(counts) == sorted(map(str, range(NUM_ITEMS)))
    # Each loader and each process of the service reads the first item once, to learn its layout.
    assert {idx: count for idx, count in counts.items() if count != 2}.keys() <= {"0"}, counts


def test_a_training_that_is_resumed_in_mid_epoch_goes_on_beside_one_that_is_ahead(
    tmp_path: Path, address: str, expected: list[Any]
) -> None:
    log = tmp_path / "log"
    with open_loader(log, address) as ahead:
        assert_equal(read(ahead), expected[: NUM_ITEMS // 4])
        with open_loader(log, address) as loader:
            batches = iter(loader)
            found = [next(batches)["x"].copy() for _ in range(3)]
            state = loader.state_dict()
        with open_loader(log, address) as loader:
            loader.load_state_dict(state)
            assert_equal(found + read(loader, 2), expected)


def test_a_recipe_that_differs_in_anything_never_gets_what_another_one_made(tmp_path: Path, address: str) -> None:
    def times(constant: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda features: {"x": features["x"] * constant}

    loaders = [open_loader(tmp_path / "log", address, times(constant)) for constant in (1.0, 2.0, 2.0)]
    found: dict[int, list[Any]] = {}

    def train(number: int) -> None:
        found[number] = read(loaders[number])

    in_threads(*[lambda number=number: train(number) for number in range(3)])  # type: ignore[misc]
    for loader in loaders:
        loader.close()
    assert_equal([2.0 * batch for batch in found[0]], found[1])
    assert_equal(found[1], found[2])


def test_what_a_file_holds_now_is_read_once_nobody_of_the_recipe_is_left(
    tmp_path: Path, address: str, service: Service, wait_until: WaitUntil
) -> None:
    path = tmp_path / "constant"

    def add_constant(features: dict[str, Any]) -> dict[str, Any]:
        return {"x": features["x"] + float(path.read_text())}

    found = []
    for text in ("1", "2"):
        path.write_text(text)
        with open_loader(tmp_path / "log", address, add_constant) as loader:
            found.append(read(loader))
        wait_until(lambda: service.report().num_recipes == 0, "the recipe is not forgotten")
    assert_equal([batch + 1.0 for batch in found[0]], found[1])


def test_different_command_lines_share_where_that_is_said_and_workers_see_none(
    tmp_path: Path, address: str, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_arguments(features: dict[str, Any]) -> dict[str, Any]:
        return {"x": features["x"] * 0 + len(sys.argv)}

    loaders = []
    for rate in ("0.1", "0.2"):
        monkeypatch.setattr(sys, "argv", ["train.py", "--rate", rate])
        loaders.append(open_loader(tmp_path / "log", address, count_arguments, ignore_arguments=True))
        assert {float(batch.flat[0]) for batch in read(loaders[-1])} == {1.0}
    assert service.report().num_recipes == 1
    for loader in loaders:
        loader.close()


TRAINER = """
import os, sys
import numpy as np
import headrace as hr

def add_noise(features, rng):
    return {"x": features["x"] + rng.standard_normal(2000)}

items = [{"x": np.full(2000, float(idx))} for idx in range(40)]
workers = {"num_workers": 2, "executor": hr.SharedService(os.environ["ADDRESS"])}
with hr.DataLoader(items, batch_size=4, shuffle=True, seed=1, transform=add_noise, **workers) as loader:
    found = []
    for epoch in range(2):
        for batch in loader:
            found.append(batch["x"].copy())
            if len(found) == 2:
                print("begun", flush=True)
                sys.stdin.readline()
    np.save(os.environ["RESULT"], np.stack(found))
"""


def test_a_training_that_is_killed_and_one_that_takes_nothing_disturb_no_other(
    tmp_path: Path, address: str, service: Service, expected: list[Any], wait_until: WaitUntil
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINER)
    trainings: list[subprocess.Popen[str]] = []

    def start(name: str) -> subprocess.Popen[str]:
        own = {"ADDRESS": address, "RESULT": str(tmp_path / f"{name}.npy"), "HEADRACE_WORKER_SECRET": SECRET}
        command = [sys.executable, str(script)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        trainings.append(subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **own}, **pipes))  # type: ignore[call-overload]
        return trainings[-1]

    try:
        killed, slow, quick = map(start, ("killed", "slow", "quick"))
        for training in trainings:
            assert training.stdout is not None
            assert training.stdout.readline() == "begun\n"
        wait_until(lambda: service.report()[:2] == (6, 1), "workers of three trainings with one recipe")
        killed.kill()
        quick.communicate("\n", timeout=60)
        wait_until(lambda: service.report().num_connected == 2, "the one that was killed is still there")
        slow.communicate("\n", timeout=60)
    finally:
        for training in trainings:
            training.kill()
            training.communicate()
    for name in ("slow", "quick"):
        assert_equal(list(np.load(tmp_path / f"{name}.npy")), expected)


def test_a_process_that_dies_over_a_ticket_dies_to_those_who_wait_and_the_stream_is_the_same(
    tmp_path: Path, address: str, expected: list[Any]
) -> None:
    flag = tmp_path / "died"

    def add_noise_and_die_once(features: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        if features["x"][0] == 17.0 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return add_noise(features, rng)

    loaders = [open_loader(tmp_path / "log", address, add_noise_and_die_once) for _ in range(2)]
    in_threads(*[lambda loader=loader: assert_equal(read(loader, 2), expected) for loader in loaders])  # type: ignore[misc]
    assert flag.exists()
    for loader in loaders:
        loader.close()


def squares(info: WorkerInfo) -> Callable[[int], Any]:
    return lambda number: number**2


def open_engine(address: str, setup: Any, *, num_workers: int = 2, **options: Any) -> Engine:
    executor = SharedService(address, secret=SECRET)
    return Engine(
        Job(setup, is_pure=True), num_workers=num_workers, executor=executor, options=EngineOptions(**options)
    )


def values(engine: Engine, payloads: Any) -> list[Any]:
    return [delivered.value for delivered in engine.run(payloads)]


def test_one_that_hangs_is_replaced_and_a_death_each_time_is_an_error(tmp_path: Path, address: str) -> None:
    flag = tmp_path / "hung"

    def hangs_once(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            if number == 5 and not flag.exists():
                flag.touch()
                time.sleep(600)
            return number

        return work

    with open_engine(address, hangs_once, stall_seconds=3.0, on_stall=Restarting()) as engine:
        assert values(engine, range(20)) == list(range(20))

    def dies(info: WorkerInfo) -> Callable[[int], int]:
        return lambda number: os._exit(7) if number == 3 else number

    with open_engine(address, dies, on_death=Restarting(budget=2)) as engine:
        found = []
        with pytest.raises(WorkerDiedError, match="exit code 7"):
            found += (delivered.value for delivered in engine.run(range(10)))
        assert found == [0, 1, 2][: len(found)]
        assert values(engine, [1, 2]) == [1, 2], "the engine is of use again"


def test_errors_are_told_to_those_who_wait_and_not_kept(tmp_path: Path, address: str) -> None:
    flag = tmp_path / "there"

    def needs_file(info: WorkerInfo) -> Callable[[int], int]:
        def work(number: int) -> int:
            if number % 3 == 2:
                flag.read_text()
            return number

        return work

    with open_engine(address, needs_file, on_error=Skipping(budget=100)) as engine:
        assert values(engine, range(9)) == [0, 1, 3, 4, 6, 7]
        flag.touch()
        assert values(engine, range(9)) == list(range(9))

    def cannot_be_made(info: WorkerInfo) -> Callable[[int], int]:
        raise ZeroDivisionError

    with open_engine(address, cannot_be_made, on_death=Raising()) as engine, pytest.raises(ZeroDivisionError):
        values(engine, range(3))


def test_runs_that_are_given_up_resized_and_begun_again_and_workers_of_the_service(address: str) -> None:
    with open_engine(address, squares) as engine:
        given_up = engine.run(iter(range(10**9)))
        assert next(given_up).value == 0
        assert values(engine, range(100)) == [number**2 for number in range(100)]
        run = engine.run(range(60))
        found = [next(run).value for _ in range(10)]
        engine.resize(4)
        found += [next(run).value for _ in range(10)]
        engine.resize(1)
        assert found + [delivered.value for delivered in run] == [number**2 for number in range(60)]

    def infos(info: WorkerInfo) -> Callable[[int], Any]:
        return lambda number: get_worker_info()

    with open_engine(address, infos, num_workers=5) as engine:
        assert {info.num_workers for info in values(engine, range(20))} == {2}


def test_less_is_kept_than_a_result_takes_and_all_is_the_same(tmp_path: Path, expected: list[Any]) -> None:
    small = Service("127.0.0.1", 0, SECRET, num_workers=1, max_bytes=70_000)  # of batches of 64 kB
    thread = threading.Thread(target=small.serve)
    thread.start()
    try:
        loaders = [open_loader(tmp_path / "log", f"127.0.0.1:{small.port}") for _ in range(2)]
        in_threads(*[lambda loader=loader: assert_equal(read(loader, 2), expected) for loader in loaders])  # type: ignore[misc]
        assert 0 < small.cache.num_bytes <= 70_000
        for loader in loaders:
            loader.close()
    finally:
        small.stop()
        thread.join()
        small.close()


def test_what_may_not_be_shared_is_done_by_workers_of_ones_own(address: str, service: Service) -> None:
    def running_sums(info: WorkerInfo) -> Callable[[int], Any]:
        state = [0]

        def add(number: int) -> tuple[int, int]:
            state[0] += number
            return info.worker_idx, state[0]

        return add

    with Engine(Job(running_sums), num_workers=2, executor=SharedService(address, secret=SECRET)) as engine:
        found = [delivered.value for delivered in engine.run(range(1, 7), in_turns=True)]
        assert found == [(0, 1), (1, 2), (0, 4), (1, 6), (0, 9), (1, 12)]
        assert service.report().num_recipes == 0

    def iterators(info: WorkerInfo) -> Callable[[int], Any]:
        return lambda count: iter(range(count))

    with Engine(Job(iterators), num_workers=1, executor=SharedService(address, secret=SECRET)) as engine:
        assert [delivered.value for delivered in engine.run_stream(3)] == [0, 1, 2]


def test_a_wrong_secret_and_a_wrong_version_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(secret: str) -> None:
        job = Job(squares, is_pure=True)
        with Engine(job, num_workers=1, executor=SharedService(address, secret=secret)) as engine:
            values(engine, range(3))

    with pytest.raises(ConfigError, match="no shared service of this secret"):
        begin("some other secret of the same length")

    def introduce_old(*arguments: Any) -> Any:
        return msgspec.structs.replace(introduce(*arguments), headrace="0.0.1")

    monkeypatch.setattr("headrace.engine.remote.service.trainer.introduce", introduce_old)
    with pytest.raises(ConfigError, match=r"refuses: .*other versions.*Headrace 0\.0\.1"):
        begin(SECRET)


def test_with_certificates_both_directions_are_encrypted() -> None:
    certificates = Path(__file__).parents[3] / "servers" / "certificates"
    tls = Tls(
        ca=str(certificates / "ca.pem"), cert=str(certificates / "trainer.pem"), key=str(certificates / "trainer.key")
    )
    service = Service("localhost", 0, SECRET, num_workers=1, tls=tls)
    thread = threading.Thread(target=service.serve)
    thread.start()
    try:
        executor = SharedService(f"localhost:{service.port}", secret=SECRET, tls=tls, host="localhost")
        with Engine(Job(squares, is_pure=True), num_workers=1, executor=executor) as engine:
            assert values(engine, range(5)) == [0, 1, 4, 9, 16]
    finally:
        service.stop()
        thread.join()
        service.close()


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"address": "nowhere"}, "not an address"),
        ({"secret": "short"}, "a secret needs"),
        ({"wait_seconds": -1.0}, "wait_seconds is -1.0"),
        ({"data_version": 3}, "data_version is 3"),
        ({"address": "127.0.0.1:1"}, "cannot be reached"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SharedService(**{"address": "127.0.0.1:1", "secret": SECRET, **options}).start(Job(squares), 1)


def test_a_service_that_comes_back_goes_unnoticed_and_one_that_does_not_is_an_error(
    tmp_path: Path, expected: list[Any]
) -> None:
    environment = {**os.environ, "HEADRACE_WORKER_SECRET": SECRET}

    def start(port: int) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-m", "headrace", "serve", "--bind", f"127.0.0.1:{port}", "--workers", "1"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("listening on 127.0.0.1:"), line
        return process, int(line.partition("127.0.0.1:")[2].partition(",")[0])

    process, port = start(0)
    services = [process]
    try:
        with open_loader(tmp_path / "log", f"127.0.0.1:{port}", wait_seconds=20.0, return_seconds=0.1) as loader:
            batches = iter(loader)
            found = [next(batches)["x"].copy() for _ in range(3)]
            process.kill()
            process.wait()
            services.append(start(port)[0])
            found += [batch["x"].copy() for batch in batches]
        with open_loader(tmp_path / "log", f"127.0.0.1:{port}", wait_seconds=0.2, return_seconds=0.1) as loader:
            batches = iter(loader)
            found_again = [next(batches)["x"].copy() for _ in range(2)]
            state = loader.state_dict()
            services[-1].send_signal(signal.SIGTERM)
            assert services[-1].wait() == 0
            with pytest.raises(WorkerDiedError, match="the shared service cannot be reached"):
                found_again += [batch["x"].copy() for batch in batches]
        assert_equal(found, expected[: NUM_ITEMS // 4])
        with open_loader(tmp_path / "log", None) as loader:
            loader.load_state_dict(state)
            assert_equal(found_again[:2] + read(loader, 2), expected)
    finally:
        for one in services:
            one.kill()
            one.wait()
            assert one.stderr is not None
            one.stderr.close()

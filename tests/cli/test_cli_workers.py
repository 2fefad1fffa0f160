"""`headrace run` through workers."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace import HDFWriter
from headrace.cli.workers import OnError, WorkerOptions
from headrace.datasets import MultiProcDataset
from headrace.engine import EngineOptions, Raising, Restarting, Skipping
from headrace.engine.process.proc_tree import descendants_of

Invoke = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, hdf: Path) -> Path:
    """Ten sequences; sequence i has i + 1 frames of the value i."""
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"class": "HDFDataset", "files": [hdf.name], "seq_ordering": "random"}))
    return path


@pytest.fixture
def write_program(tmp_path: Path, hdf: Path) -> Callable[..., Path]:
    def write(transform: str, *, dataset: str = "INNER") -> Path:
        """Write a config that is a program; `transform` is the body of its transform, `INNER` its options."""
        path = tmp_path / "own.py"
        path.write_text(
            "import os\nimport headrace\n"
            f"def transform(features):\n    value = int(features['data'][0, 0])\n    {transform}\n    return features\n"
            f"INNER = {{'class': 'HDFDataset', 'files': [{str(hdf)!r}], 'transform': transform}}\n"
            f"dataset = {dataset}\n"
        )
        return path

    return write


def run_json(invoke: Invoke, *arguments: object) -> dict[str, Any]:
    result = invoke("run", *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_the_stream_is_the_same_with_workers_and_the_summary_tells_of_them(
    invoke: Invoke, config: Path, num_workers: int
) -> None:
    plain = run_json(invoke, config, "--epochs", 2)
    report = run_json(invoke, config, "--epochs", 2, "--num-workers", num_workers, "--buffer-size", 4)
    assert report["digest"] == plain["digest"]
    assert report["dataset"] == {**plain["dataset"], "num_workers": num_workers}
    assert "workers" not in plain
    workers = report["workers"]
    assert (workers["num_workers"], workers["buffer_size"], workers["sharding_method"]) == (num_workers, 4, "seq_order")
    assert (workers["num_skipped"], workers["num_restarts"]) == (0, 0)
    for name in ("waiting", "loading", "transport", "consumer"):
        assert workers[f"seconds_{name}"] > 0


def test_people_read_where_the_time_went(invoke: Invoke, config: Path) -> None:
    lines = invoke("run", config, "--num-workers", 2).stdout.splitlines()
    assert lines[0] == "HDFDataset of 10 sequences, seq_ordering=random, 2 workers"
    assert lines[-2].startswith("  time here: waiting for workers ")
    assert ", transport " in lines[-2]
    assert ", consumer " in lines[-2]
    assert lines[-1].startswith("  time in 2 workers: loading ")
    lines = invoke("run", config, "--num-workers", 0, "--quiet").stdout.splitlines()
    assert lines[-1].startswith("  time: loading ")


def test_a_config_that_has_workers_keeps_what_the_command_line_does_not_change(
    invoke: Invoke, config: Path, tmp_path: Path
) -> None:
    own = tmp_path / "multi.json"
    inner = json.loads(config.read_text())
    own.write_text(json.dumps({"class": "MultiProcDataset", "dataset": inner, "num_workers": 0, "buffer_size": 7}))
    found = [
        run_json(invoke, own, *arguments)
        for arguments in ((), ("--num-workers", 1), ("--buffer-size", 3), ("--num-workers", 1, "--buffer-size", 3))
    ]
    assert [(report["workers"]["num_workers"], report["workers"]["buffer_size"]) for report in found] == [
        (0, 7),
        (1, 7),
        (0, 3),
        (1, 3),
    ]
    assert {report["digest"] for report in found} == {run_json(invoke, config)["digest"]}


def test_skipping_replaces_only_what_the_config_says_of_errors() -> None:
    own = EngineOptions(on_death=Restarting(1), on_error=Skipping(3))
    config = {"class": MultiProcDataset, "num_workers": 1, "engine_options": own}
    changed = WorkerOptions(on_error=OnError.SKIP, max_errors=5).apply_to(config)["engine_options"]
    assert (changed.on_death, changed.on_error) == (Restarting(1), Skipping(5))
    changed = WorkerOptions(on_error=OnError.RAISE).apply_to(config)["engine_options"]
    assert (changed.on_death, changed.on_error) == (Restarting(1), Raising())
    assert config["engine_options"] is own


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--buffer-size", 3], "--num-workers"),
        (["--quarantine", "q.jsonl"], "--on-error skip"),
        (["--num-workers", 1, "--max-errors", 1], "--on-error skip"),
        (["--num-workers", 1, "--max-errors", 1, "--on-error", "raise"], "--on-error skip"),
        (["--on-error", "skip", "--quarantine", "no/such/folder/q.jsonl"], "no/such/folder"),
        (["--num-workers", -1], "num-workers"),
        (["--num-workers", 1, "--buffer-size", 0], "buffer-size"),
        (["--on-error", "ignore"], "ignore"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    invoke: Invoke, config: Path, arguments: list[object], message: str
) -> None:
    result = invoke("run", config, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_a_dataset_that_is_built_already_is_refused(invoke: Invoke, write_program: Callable[..., Path]) -> None:
    program = write_program("pass", dataset="headrace.init_dataset(INNER)")
    result = invoke("run", program, "--num-workers", 2)
    assert result.exit_code == 2
    assert "a HDFDataset that is built already" in result.stderr


@pytest.mark.parametrize("workers", [(), ("--num-workers", 2)])
def test_sequences_that_fail_are_skipped_counted_and_listed(
    invoke: Invoke, write_program: Callable[..., Path], tmp_path: Path, workers: tuple[object, ...]
) -> None:
    program = write_program("assert value not in (3, 7), value")
    quarantine = tmp_path / "bad.jsonl"
    arguments = [program, *workers, "--on-error", "skip", "--quarantine", quarantine]
    report = run_json(invoke, *arguments)
    assert report["total"]["num_seqs"] == 8
    assert report["workers"]["num_skipped"] == 2
    bad = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert [(line["tag"], line["error"]) for line in bad] == [
        ("seq-3", "AssertionError: 3"),
        ("seq-7", "AssertionError: 7"),
    ]
    assert f"  skipped because of errors: 2 sequences, listed in {quarantine}" in invoke("run", *arguments).stdout
    result = invoke("run", *arguments, "--max-errors", 1)
    assert result.exit_code == 1
    assert "unexpected AssertionError: 7" in result.stderr
    assert "the budget of 1 skips is used up" in result.stderr


def test_what_is_skipped_does_not_depend_on_the_workers(invoke: Invoke, write_program: Callable[..., Path]) -> None:
    program = write_program("assert value % 4 != 1")
    digests = {
        run_json(invoke, program, "--num-workers", number, "--on-error", "skip")["digest"] for number in (0, 1, 3)
    }
    assert len(digests) == 1


def test_an_error_in_a_worker_is_named_with_its_line_and_its_sequence(
    invoke: Invoke, write_program: Callable[..., Path]
) -> None:
    program = write_program("features['dta' if value == 4 else 'data']")
    result = invoke("run", program, "--num-workers", 2)
    assert result.exit_code == 1
    assert "unexpected KeyError: 'dta'" in result.stderr
    assert f"{program}, line 5, in transform" in result.stderr
    assert "seq-4" in result.stderr
    assert "Traceback" not in result.stderr
    assert "The worker's traceback:" in invoke("run", program, "--num-workers", 2, "--debug").stderr


def test_a_worker_that_dies_once_changes_nothing_and_is_counted(
    invoke: Invoke, write_program: Callable[..., Path], config: Path, tmp_path: Path
) -> None:
    expected = run_json(invoke, write_program("pass"))["digest"]
    once = str(tmp_path / "once")
    program = write_program(f"value == 6 and not os.path.exists({once!r}) and (os.mkdir({once!r}), os._exit(3))")
    result = invoke("run", program, "--num-workers", 2)
    assert result.exit_code == 0, result.output
    assert f"stream digest: {expected}" in result.stdout
    assert "  restarted: 1 worker" in result.stdout.splitlines()


def test_a_worker_that_dies_for_good_is_exit_code_1_with_cause_and_sequence(
    invoke: Invoke, write_program: Callable[..., Path]
) -> None:
    program = write_program(
        "value == 6 and os._exit(3)",
        dataset="{'class': 'MultiProcDataset', 'dataset': INNER, 'num_workers': 2, 'buffer_size': 4, "
        "'engine_options': headrace.EngineOptions(on_death=headrace.engine.Restarting(1))}",
    )
    result = invoke("run", program)
    assert result.exit_code == 1
    assert "exit code 3" in result.stderr
    assert "tag 'seq-6', epoch 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_workers_of_a_real_command_find_what_lies_beside_the_config(
    tmp_path: Path, config: Path, invoke: Invoke
) -> None:
    (tmp_path / "my_transforms.py").write_text(
        "def double(features):\n    return {**features, 'data': features['data'] * 2}\n"
    )
    command = [
        sys.executable,
        "-m",
        "headrace",
        "run",
        str(config),
        "--json",
        "--set",
        "transform=my_transforms:double",
    ]
    digests = []
    for arguments in ([], ["--num-workers", "2"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, timeout=240)
        assert done.stderr == ""
        digests.append(json.loads(done.stdout)["digest"])
    assert digests[0] == digests[1]
    assert digests[0] != run_json(invoke, config)["digest"]


@pytest.mark.kernel_timing  # the interrupt comes wherever the command is
@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_ends_the_command_and_its_workers(tmp_path: Path, to_group: bool) -> None:
    program = tmp_path / "endless.py"
    program.write_text(
        "import os\n"
        "import numpy as np\n"
        "told = False\n"
        "def tell(features):\n"
        "    global told\n"
        "    if not told:\n"
        "        os.write(1, b'reading\\n')\n"  # one write, since both workers may do so at once
        "        told = True\n"
        "    return features\n"
        "DATA = [{'data': np.zeros(3, dtype='float32')}] * 1000\n"
        "dataset = {'class': 'StaticDataset', 'data': DATA, 'repeat_epoch': 10**5, 'transform': tell}\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "run", str(program), "--json", "--num-workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    started = [os.pidfd_open(pid) for pid in descendants_of(process.pid)]
    assert len(started) >= 2  # the warden, and the worker that reads
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert set(out.splitlines()) <= {"reading"}
    assert err.count("\n") == 1, err
    assert err.startswith("interrupted in epoch 1 after ")
    for pidfd in started:
        assert select.select([pidfd], [], [], 120)[0], "a process is left"
        os.close(pidfd)


def test_workers_of_files_that_are_shared_out_are_those_of_the_dataset_itself(invoke: Invoke, tmp_path: Path) -> None:
    for number in range(4):
        with HDFWriter(tmp_path / f"{number}.hdf") as writer:
            writer.append(f"seq-{number}", {"data": np.full((3, 2), number, np.float32)})
    config = tmp_path / "program.py"
    config.write_text(
        f"files = [f'{tmp_path}/{{i}}.hdf' for i in range(4)]\n"
        "inner = lambda files: {'class': 'HDFDataset', 'files': files}\n"
        "dataset = {'class': 'DistributeFilesDataset', 'files': files, 'partition_epoch': 2, "
        "'get_sub_epoch_dataset': inner}\n"
    )
    results = [
        run_json(invoke, config, "--epochs", "1..2", *options)
        for options in ([], ["--num-workers", 2], ["--num-workers", 0])
    ]
    assert len({result["digest"] for result in results}) == 1
    assert [result["workers"]["num_workers"] for result in results] == [1, 2, 0]

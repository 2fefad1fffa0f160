"""The command line as a real process: Ctrl-C, a reader that goes away, streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "headrace"]
ENDLESS = """
def tell(features):
    global told
    if not told:
        print("reading", flush=True)
        told = True
    return features

told = False
dataset = {"class": "StaticDataset", "data": DATA, "repeat_epoch": 10**6, "transform": tell}
"""


def endless_config(folder: Path) -> Path:
    path = folder / "endless.py"
    path.write_text("import numpy as np\nDATA = [{'data': np.zeros(3, dtype='float32')}] * 1000\n" + ENDLESS)
    return path


@pytest.mark.kernel_timing  # the interrupt comes wherever the command is
def test_ctrl_c_ends_a_run_with_one_line_and_exit_code_130(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", str(endless_config(tmp_path)), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that started the tests in the background may have told its children to ignore SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("interrupted in epoch 1 after ")


def test_a_reader_that_goes_away_is_no_error_worth_a_word(hdf: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, "inspect", str(hdf)], stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141


def test_stdout_holds_the_json_and_stderr_the_rest(tmp_path: Path, hdf: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text(json.dumps({"class": "HDFDataset", "files": hdf.name}))
    done = subprocess.run([*COMMAND, "run", str(config), "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["total"]["num_seqs"] == 10
    assert done.stderr == ""


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_a_terminal_without_unicode_gets_question_marks_not_a_crash(hdf: Path, encoding: str) -> None:
    done = subprocess.run(
        [*COMMAND, "inspect", str(hdf)],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert ("█" in done.stdout.decode()) == (encoding == "utf-8")


def test_a_warning_is_one_line(tmp_path: Path) -> None:
    config = tmp_path / "c.py"
    config.write_text(
        "import warnings\nwarnings.warn('odd data')\ndataset = {'class': 'StaticDataset', 'data': [{'data': [1]}]}\n"
    )
    done = subprocess.run([*COMMAND, "run", str(config)], capture_output=True, text=True, check=True)
    assert done.stderr == "warning: odd data\n"


def test_a_failure_leaves_no_traceback_and_the_exit_code_says_whose_it_is(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "run", str(tmp_path / "none.json")], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: no such config file")

"""A pytest plugin that executes the examples of README.md and docs/, for `make examples`.

Each document runs in a folder of its own that holds `a.hdf` and `b.hdf`, two small corpora, and `data/`. A `python`
block is executed, and an `output` block after it is compared with what it printed; a `py` block whose first line is
`# name.py` is saved under that name, to be imported. The `$ headrace` commands of a `console` block are run, and what
they print is compared (`...` stands for any text). Other blocks are not looked at.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.sources import HDFWriter

_ROOT = Path(__file__).parents[1]
_PYTHON = PythonEvaluator()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _write_corpus(path: str, name: str, num_seqs: int) -> None:
    rng = np.random.RandomState(num_seqs)  # frozen for all versions of NumPy, so that the docs can show digests
    labels = {"classes": [str(number) for number in range(10)]}
    with HDFWriter(path, labels=labels) as writer:
        for number in range(num_seqs):
            frames = int(rng.randint(20, 120))
            features = rng.standard_normal((frames, 40)).astype(np.float32)
            classes = rng.randint(0, 10, size=frames // 4).astype(np.int32)
            writer.append(f"{name}/{number:03d}", {"data": features, "classes": classes})


def _setup(namespace: dict[str, Any]) -> None:
    namespace["_folder"] = folder = tempfile.mkdtemp(prefix="headrace-docs-")
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ["HEADRACE_CACHE"] = os.path.join(folder, ".cache")
    Path("data").symlink_to(_ROOT / "data")
    _write_corpus("a.hdf", "a", 60)
    _write_corpus("b.hdf", "b", 40)


def _teardown(namespace: dict[str, Any]) -> None:
    os.chdir(_ROOT)
    sys.path.remove(namespace["_folder"])
    del os.environ["HEADRACE_CACHE"]
    shutil.rmtree(namespace["_folder"])


def _run_console(example: Example) -> str | None:
    """Run each `$ headrace` command of a block; return a report if one prints something else, or fails."""
    for part in str(example.parsed).split("$ ")[1:]:
        command, _, expected = part.partition("\n")
        name, *arguments = shlex.split(command)
        if name != "headrace":
            continue
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}, catch_exceptions=False)
        should_fail = expected.startswith("error: ")
        is_same = doctest.OutputChecker().check_output(expected, result.output, _FLAGS)
        if not is_same or should_fail == (result.exit_code == 0):
            return f"`{command}` exited with {result.exit_code}; expected:\n{expected}\ngot:\n{result.output}"
    return None


def _run_python(example: Example) -> None:
    """Execute a block, and keep what it prints for the `output` block that may follow."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            _PYTHON(example)
    finally:
        sys.stdout.write(printed.getvalue())
    example.namespace["_printed"] = printed.getvalue()


def _compare_output(example: Example) -> str | None:
    """Return a report if the block before has printed something else."""
    expected, printed = str(example.parsed), example.namespace["_printed"]
    if doctest.OutputChecker().check_output(expected, printed, _FLAGS):
        return None
    return f"expected:\n{expected}\ngot:\n{printed}"


def _save_module(example: Example) -> None:
    """Write a module into the folder of the document, which is on the path of imports."""
    text = str(example.parsed)
    Path(text.partition("\n")[0].removeprefix("# ")).write_text(text)


pytest_collect_file = Sybil(
    parsers=[
        CodeBlockParser(language="python", evaluator=_run_python),
        CodeBlockParser(language="output", evaluator=_compare_output),
        CodeBlockParser(language="py", evaluator=_save_module),
        CodeBlockParser(language="console", evaluator=_run_console),
        SkipParser(),
    ],
    path=str(_ROOT),
    patterns=["README.md", "docs/**/*.md", "docs/*.md"],
    setup=_setup,
    teardown=_teardown,
).pytest()

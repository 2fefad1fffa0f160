"""Change the code in one place at a time and run its tests: prints the changes that no test notices.

Run `python tests/mutants.py [TEXT ...]` with the tests' requirements installed; with texts, only mutants whose file or
new text contains one of them. The mutants, and the quick tests of each file, are in `mutants.toml`. A mutant that
survives shows a missing test, or code that is not needed.
"""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from py_compile import PycInvalidationMode

TESTS = Path(__file__).parent
LIMIT_SECONDS = 120.0  # for the tests of one mutant: a test that hangs notices the mutant, too
PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
GATE = ["-m", "not long and not extra"]


def pass_tests(tests: list[str], folder: Path) -> bool:
    """Tell whether tests pass with the copy of the code in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "db")}
    with subprocess.Popen(
        [*PYTEST, *GATE, *(str(TESTS / test) for test in tests)],
        cwd=TESTS.parent,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(LIMIT_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def applied(mutant: dict[str, str], folder: Path) -> Iterator[None]:
    """Apply a mutant to the copy of the code.

    Raises:
        SystemExit: Its text is not in the file exactly once.
    """
    path = folder / "src" / "headrace" / mutant["file"]
    code = path.read_text()
    if (num_found := code.count(mutant["old"])) != 1:
        sys.exit(f"{mutant['file']} contains this text {num_found} times, not once: {mutant['old']}")
    path.write_text(code.replace(mutant["old"], mutant["new"]))
    try:
        yield
    finally:
        path.write_text(code)


def run(texts: list[str], folder: Path) -> None:
    """Run the tests of each mutant that contains one of the texts."""
    listed = tomllib.loads((TESTS / "mutants.toml").read_text())
    mutants = [m for m in listed["mutants"] if not texts or any(text in m["file"] + m["new"] for text in texts)]
    shutil.copytree(TESTS.parent / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    # By hash: two mutants of one second and size would be taken for each other
    compileall.compile_dir(folder / "src", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    for mutant in mutants:
        with applied(mutant, folder):
            pass
    for file in dict.fromkeys(mutant["file"] for mutant in mutants):
        if not pass_tests(listed["tests"][file], folder):
            sys.exit(f"the tests of {file} fail without a mutant: {' '.join(listed['tests'][file])}")
    num_survived = 0
    for mutant in mutants:
        with applied(mutant, folder):
            if pass_tests(listed["tests"][mutant["file"]], folder):
                num_survived += 1
                print(f"survived: {mutant['file']}\n  - {mutant['old']}\n  + {mutant['new']}", flush=True)
    print(f"{len(mutants)} mutants, {len(mutants) - num_survived} found, {num_survived} survived")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        run(sys.argv[1:], Path(name))

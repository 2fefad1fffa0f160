"""The command `headrace`, as a user types it."""

from __future__ import annotations

import subprocess
import sys


def headrace(*arguments: object) -> str:
    """Run `headrace ARGUMENTS` and return what it prints; its messages go where ours go.

    Raises:
        SystemExit: It failed, and said why; with its exit code.
    """
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    result = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if result.returncode:
        sys.exit(result.returncode)
    return result.stdout.decode()

"""A small HDF5 corpus, and the command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from headrace.cli.app import app
from headrace.sources import HDFWriter

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "path", list(sys.path))  # a config's folder joins it, and workers look everywhere in it


@pytest.fixture
def write_corpus() -> Callable[..., Path]:
    def write(path: Path, num_seqs: int = 10, prefix: str = "seq", first_value: int = 0) -> Path:
        """Write `num_seqs` sequences: sequence i has i + 1 frames of float32[2] and one class, i % 3."""
        with HDFWriter(path, labels={"classes": ["x", "y", "z"]}) as writer:
            for number in range(num_seqs):
                data = np.full((number + 1, 2), first_value + number, dtype=np.float32)
                writer.append(f"{prefix}-{number}", {"data": data, "classes": np.array([number % 3], dtype=np.int32)})
        return path

    return write


@pytest.fixture
def hdf(tmp_path: Path, write_corpus: Callable[..., Path]) -> Path:
    return write_corpus(tmp_path / "a.hdf")


@pytest.fixture
def invoke() -> Invoke:
    def call(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="headrace")

    return call

"""The wheel, installed as users do: into an empty environment, for each Python at hand, and with each of its extras.

Needs a package index, so it runs only when it is asked for: `make test-installs`, and `make test-installs EXTRAS=1` for
the extras, which takes gigabytes and minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WHAT = os.environ.get("HEADRACE_TEST_INSTALLS", "")
# The requirement of PyTorch, where another than the newest is to be had: `torch==2.13.0`.
TORCH = os.environ.get("TORCH", "torch")
NOT_FOR_USERS = {"test", "dev", "stores", "peers", "notebooks", "bench"}

needs_index = pytest.mark.skipif(not WHAT, reason="needs a package index: make test-installs")
pytestmark = pytest.mark.timeout(900)

# Import all public names; the same stream from this thread, threads and processes; nothing is left behind.
_CORE = """
import sys
import numpy as np
import headrace as hr

def double(seq):
    return {"data": 2 * seq["data"]}

def stream(**options):
    dataset = hr.HDFDataset(["corpus.hdf"], seq_ordering="random")
    with hr.DataLoader(dataset, batching=hr.FrameBudget(60), transform=double, **options) as loader:
        return [(batch["data"].tobytes(), batch.tags) for epoch in (1, 2) for batch in loader]

if __name__ == "__main__":
    for name in hr.__all__:
        getattr(hr, name)
    with hr.HDFWriter("corpus.hdf") as writer:
        for number in range(24):
            writer.append(f"seq-{number}", {"data": np.full((number + 1, 2), number, np.float32)})
    here = stream(num_workers=0)
    assert len(here) > 4
    assert stream(num_workers=2, executor="thread") == here
    assert stream(num_workers=2) == here
    left = {"torch", "ray", "pytest", "matplotlib"} & set(sys.modules)
    assert not left, left
    print("all is well", hr.__version__)
"""

# For each extra, what it is there for.
_USES = {
    "audio": "from headrace.sources import AudioSource; import soundfile, soxr",
    "torch": "import headrace.torch; from headrace.adapters import torch as adapter; adapter.to_device",
    "jax": "from headrace.adapters import jax as adapter; import jax; jax.devices()",
    "lhotse": "import headrace as hr, lhotse; hr.LhotseDataLoader",
    "arrow": "import headrace as hr, pyarrow.parquet; hr.ParquetSource; hr.ArrowSource",
    "hf": "import headrace as hr, datasets as d; hr.HuggingFaceSource(d.Dataset.from_dict({'x': [1]}))",
    "text": "import headrace.vocabularies, sentencepiece, tokenizers",
    "ray": "from headrace.adapters import ray_train",
    "transformers": "from headrace.adapters.transformers import HeadraceTrainer",
    "lightning": "from headrace.adapters.lightning import HeadraceDataModule",
    "accelerate": "from headrace.adapters.accelerate import prepare_loader",
    "torchtitan": "from headrace.adapters.torchtitan import HeadraceDataLoader",
    "image": "from headrace.sources.images import import_pillow; import_pillow()",
    "http": "import fsspec; fsspec.filesystem('http')",
    "s3": "import fsspec; fsspec.filesystem('s3')",
    "gs": "import gcsfs",
    "report": "import matplotlib",
    "graphs": "import graphviz",
}


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def version_of(python: str | Path) -> str:
    """Return what an interpreter says of itself; nothing if it is one that does not run, as a shim may be."""
    try:
        done = subprocess.run([python, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def pythons_at_hand() -> list[str]:
    """Return the interpreters from 3.11 on that there are, by version: on the path, and pyenv's."""
    found = {f"{sys.version_info.major}.{sys.version_info.minor}": sys.executable}
    names = [f"{minor}{suffix}" for minor in range(11, 16) for suffix in ("", "t")]
    versions = Path(os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")) / "versions"
    for name in names:
        of_pyenv = sorted(versions.glob(f"3.{name.rstrip('t')}.*{'t' if name.endswith('t') else '[0-9]'}/bin/python"))
        path = of_pyenv[-1] if of_pyenv else shutil.which(f"python3.{name}")
        if path is not None and version_of(path).startswith(f"Python 3.{name.rstrip('t')}."):
            found.setdefault(f"3.{name}", str(path))
    return [found[name] for name in sorted(found, key=lambda name: (len(name.split(".")[1]), name))]


def users_extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(set(project["optional-dependencies"]) - NOT_FOR_USERS)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    code = f"import hatchling.build; print(hatchling.build.build_wheel({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return folder / done.stdout.split()[-1]


def install(python: str, folder: Path, *requirements: str) -> Path:
    """Make an environment with nothing but these, and return it."""
    environment = folder / "environment"
    subprocess.run([python, "-m", "venv", str(environment)], check=True)
    pip = [str(python_of(environment)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *requirements], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return environment


def run(environment: Path, *words: str, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST", "HEADRACE"))}
    command = [str(environment / "bin" / words[0]), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_index
@pytest.mark.parametrize("python", pythons_at_hand() if WHAT else [sys.executable])
def test_the_wheel_works_alone(python: str, wheel: Path, tmp_path: Path) -> None:
    environment = install(python, tmp_path, str(wheel))
    (tmp_path / "program.py").write_text(_CORE)
    assert run(environment, "python", "-W", "error", "program.py", cwd=tmp_path).startswith("all is well")
    assert "corpus.hdf" in run(environment, "headrace", "inspect", "corpus.hdf", cwd=tmp_path)
    shutil.rmtree(environment)


@needs_index
@pytest.mark.skipif(WHAT != "extras", reason="takes gigabytes: make test-installs EXTRAS=1")
@pytest.mark.parametrize("extra", users_extras())
def test_an_extra_brings_what_it_is_for(extra: str, wheel: Path, tmp_path: Path) -> None:
    pinned = [TORCH] if TORCH != "torch" else []  # or another package's requirement brings another one
    environment = install(sys.executable, tmp_path, f"headrace[{extra}] @ {wheel.as_uri()}", *pinned)
    run(environment, "python", "-c", _USES[extra], cwd=tmp_path)
    shutil.rmtree(environment)


def test_a_shim_without_an_interpreter_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("python3.11", "echo command not found >&2; exit 127"), ("python3.12", "echo Python 3.1.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert pythons_at_hand() == [sys.executable]

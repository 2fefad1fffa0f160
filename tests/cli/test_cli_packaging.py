"""What is installed, and what an import pulls in."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).parents[2]
OPTIONAL = ("torch", "soundfile", "soxr", "pyarrow", "datasets", "lhotse", "ray", "s3fs", "matplotlib", "returnn")
COMMAND_LINE = ("typer", "rich")


def run_python(code: str, *, cwd: Path | None = None) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=cwd)
    return done.stdout


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import headrace", OPTIONAL + COMMAND_LINE),
        ("import headrace; headrace.HDFDataset; headrace.init_dataset", OPTIONAL + COMMAND_LINE),
        ("import headrace.cli", OPTIONAL),
    ],
)
def test_an_import_pulls_in_no_optional_package(statement: str, absent: tuple[str, ...]) -> None:
    loaded = run_python(f"{statement}\nimport sys\nprint(' '.join(sys.modules))").split()
    assert "headrace" in loaded
    assert not set(absent) & set(loaded)


def test_the_wheel_holds_the_package_and_no_data(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    name = run_python(
        f"import hatchling.build\nprint(hatchling.build.build_wheel({str(tmp_path)!r}))", cwd=ROOT
    ).split()[-1]
    with zipfile.ZipFile(tmp_path / name) as wheel:
        names = wheel.namelist()
    folders = {name.split("/")[0] for name in names}
    assert len(folders) == 2
    assert "headrace" in folders
    assert all(folder == "headrace" or folder.endswith(".dist-info") for folder in folders)
    assert "headrace/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".flac", ".jsonl", ".hdf"))]


def test_the_citation_names_this_version() -> None:
    lines = (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {headrace.__version__}" in lines

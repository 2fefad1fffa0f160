"""The notebooks run, in a real kernel, from the first cell to the last; they are kept without their outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text())["cells"]
    assert cells[0]["cell_type"] == "markdown"
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.extra
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    if path.stem == "speech" and not (ROOT / "data" / "spoken_numbers" / "manifest.jsonl").is_file():
        pytest.skip("the corpus is not here")
    (tmp_path / "data").symlink_to(ROOT / "data")
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.output_type == "error"]
    if path.stem == "first-batches":  # a loader and a batch show themselves
        assert sum("text/html" in output.get("data", {}) for output in shown) >= 2
    if path.stem == "speech":  # so does a plan, without `%matplotlib inline`
        assert any("image/png" in output.get("data", {}) for output in shown)


def test_a_page_shows_what_the_cells_of_a_notebook_have_shown() -> None:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "hooks" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    outputs = [
        {"output_type": "stream", "name": "stderr", "text": "a warning\n"},
        {"output_type": "stream", "name": "stdout", "text": "one\n"},
        {"output_type": "stream", "name": "stdout", "text": "two\n"},
        {"output_type": "execute_result", "data": {"text/plain": "<Batch>", "text/html": "<b>Batch</b>"}},
        {"output_type": "display_data", "data": {"text/plain": "<Figure>", "image/png": "aGk=\n"}},
        {"output_type": "execute_result", "data": {"text/plain": "3"}},
    ]
    cell = {"cell_type": "code", "source": ["1 + 2"], "outputs": outputs}
    hook._join_streams(cell)
    page = hook.page_of(Path("a.ipynb"), [{"cell_type": "markdown", "source": ["# A"]}, cell])
    code, printed, shown, picture, value = page.strip().split("\n\n")[2:]
    assert code == "```python\n1 + 2\n```"
    assert printed == "```output\none\ntwo\n```"
    assert shown == '<div class="cell-output"><b>Batch</b></div>'
    assert picture.endswith('src="data:image/png;base64,aGk=">')
    assert value == "```output\n3\n```"

"""Shows the notebooks as pages of the site: a hook of MkDocs. They are run by tests, and kept without outputs.

Where nbclient and ipykernel are installed, the build runs them, a few seconds each, and a page shows the outputs, too.
Elsewhere, as in the ordinary check, a page has the cells alone.
"""

from __future__ import annotations

import functools
import json
import logging
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
_FOLDER = _ROOT / "docs" / "notebooks"
_CELL_SECONDS = 120
_logger = logging.getLogger("mkdocs.plugins.notebooks")  # a warning stops a strict build


def page_of(path: Path, cells: list[dict[str, Any]]) -> str:
    """Return a notebook as Markdown, with a line that says where to get it.

    Args:
        path: Of the notebook.
        cells: Its cells, run or not.
    """
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        parts += [shown for output in cell.get("outputs", []) if (shown := show_output(output))]
    title, *rest = parts
    return "\n\n".join([title, f"The notebook is `docs/notebooks/{path.name}` of the repository.", *rest, ""])


def show_output(output: dict[str, Any]) -> str:
    """Return what a cell has shown as Markdown: the richest form that a page can have; empty for nothing."""
    if output["output_type"] == "stream":
        return f"```output\n{''.join(output['text']).rstrip()}\n```" if output["name"] == "stdout" else ""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="Output of the cell above" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    if "text/html" in data:
        return f'<div class="cell-output">{"".join(data["text/html"]).strip()}</div>'
    text = "".join(data.get("text/plain", "")).rstrip()
    return f"```output\n{text}\n```" if text else ""


def run_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, with their outputs if they can be run here."""
    text = path.read_text(encoding="utf-8")
    if not (find_spec("nbclient") and find_spec("ipykernel")):
        return list(json.loads(text)["cells"])
    return _run(text, path.name)


@functools.cache  # `mkdocs serve` builds anew at each change of any page
def _run(text: str, name: str) -> list[dict[str, Any]]:
    import nbclient
    import nbformat

    book = nbformat.reads(text, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "data").symlink_to(_ROOT / "data")
        client = nbclient.NotebookClient(book, timeout=_CELL_SECONDS, resources={"metadata": {"path": folder}})
        try:
            client.execute()
        except nbclient.exceptions.CellExecutionError as error:  # such as an extra that is not installed
            _logger.info("the notebook %s cannot be run here: %s", name, error.evalue)
            return list(json.loads(text)["cells"])
    for cell in book.cells:
        _join_streams(cell)
    return list(book.cells)


def _join_streams(cell: dict[str, Any]) -> None:
    """Put what a cell has written in pieces into one output."""
    joined: list[Any] = []
    for output in cell.get("outputs", []):
        if joined and output["output_type"] == "stream" and output["name"] == joined[-1].get("name"):
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    if joined:
        cell["outputs"] = joined


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(_FOLDER.glob("*.ipynb")):
        content = page_of(path, run_cells(path))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=content))
    return files

"""Shows the notebooks as pages of the site: a hook of MkDocs. They are run by tests, and kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "notebooks"


def page_of(path: Path) -> str:
    """Return a notebook as Markdown, with a line that says where to get it."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
    title, *rest = parts
    return "\n\n".join([title, f"The notebook is `docs/notebooks/{path.name}` of the repository.", *rest, ""])


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each notebook."""
    from mkdocs.structure.files import File

    for path in sorted(_FOLDER.glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page_of(path)))
    return files

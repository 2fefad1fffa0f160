"""The pages for users of lhotse: their Python blocks, one after the other, are a program that runs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["reference/lhotse.md", "how-to/migrating-from-lhotse.md"]

if importlib.util.find_spec("lhotse") is None or importlib.util.find_spec("soundfile") is None:
    pytest.skip("needs lhotse and soundfile", allow_module_level=True)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, tmp_path):
    if not (ROOT / "data" / "spoken_numbers" / "manifest.jsonl").is_file():
        pytest.skip("the corpus is not here")
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) > 3
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "page.py").write_text("\n".join(blocks))  # no main guard
    environment = {**os.environ, "HEADRACE_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr

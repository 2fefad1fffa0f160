"""The first page of the docs says what is so: the extras that there are, and how to install."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/index.md").read_text()
README = (ROOT / "README.md").read_text()


def test_the_list_of_extras_is_that_of_the_package():
    listed = re.findall(r"^\| (`.*?) \|", PAGE.partition("| extra |")[2].partition("\n\n")[0], re.MULTILINE)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(re.findall(r"`([\w-]+)`", " ".join(listed))) == sorted(extras)


def test_the_ten_lines_are_those_of_the_readme():
    (ten,) = re.findall(r"## Ten lines\n\n(```python\n.*?```)", README, re.DOTALL)
    assert ten in PAGE


def test_nothing_is_installed_from_an_index_that_does_not_have_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    assert [str(page) for page in pages if re.search(r"pip install '?headrace", page.read_text())] == []

"""What holds for every format: a new one is in it by its entry alone."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

import pytest
from format_cases import FORMATS as CASES

from headrace import sources
from headrace.errors import HeadraceError
from headrace.sources import Source, Writer, formats, open_source, registry
from headrace.sources.formats import FORMATS, find_format, format_named, format_of_target
from headrace.sources.naming import first_option_of

pytestmark = pytest.mark.long

NEEDS = {"parquet": "pyarrow", "arrow": "pyarrow", "ogg_zip": "soundfile", "images": "PIL"}
BY_LIBRARY = {"huggingface"}  # only its library writes it


@pytest.mark.parametrize("name", FORMATS)
def test_an_entry_names_classes_that_there_are(name: str) -> None:
    entry = FORMATS[name]
    cls = registry.source_class_of({"class": entry.source})
    assert issubclass(cls, Source)
    assert registry.source_class_of({"class": entry.source}) is cls
    assert first_option_of(cls) is not None
    assert formats.format_of_source(cls) is entry
    for known in (name, entry.source, entry.source, entry.writer, entry.writer):
        assert known is None or format_named(known) is entry
    if entry.writer is not None:
        assert issubclass(registry.writer_class_of(entry), Writer)
        assert format_of_target(f"x{entry.suffix}") is entry


def test_every_format_has_a_case_in_the_laws_of_formats_and_is_found_from_its_files(tmp_path: Path) -> None:
    found = set()
    for name, case in CASES.items():
        folder = tmp_path / name
        folder.mkdir()
        if not case.is_available:
            continue
        case.write(folder)
        for path in folder.iterdir():
            try:
                found.add(find_format(path).name)
            except HeadraceError:
                continue
    missing = {name for name in FORMATS if importlib.util.find_spec(NEEDS.get(name, "numpy"))} - found - BY_LIBRARY
    if importlib.util.find_spec("soundfile") is None:
        missing -= {"audio", "manifest", "ogg_zip"}
    assert not missing, f"write a case for them in format_cases.py: {missing}"


@pytest.mark.parametrize("name", FORMATS)
def test_the_table_of_formats_in_the_docs_has_a_line_for_each(name: str) -> None:
    entry = FORMATS[name]
    classes = f"| `{entry.source}` | {f'`{entry.writer}` ' if entry.writer else ''}|"
    assert classes in (Path(__file__).parents[2] / "docs" / "how-to" / "converting.md").read_text()


DIRECT = ["AudioFolderSource", "AudioSource", "HDFSource", "JsonlSource", "TarSource", "TextSource"]


@pytest.mark.parametrize("path", ["half\ud800.x", "zero\0.x"], ids=["half of a pair", "zero byte"])
@pytest.mark.parametrize("name", [None, *FORMATS, *DIRECT])
def test_a_name_that_no_file_can_have_is_an_error_that_shows_it(name: str | None, path: str) -> None:
    open_it = getattr(sources, name) if name in DIRECT else partial(open_source, source_class=name)
    with pytest.raises(HeadraceError) as raised:
        open_it(path)
    assert path[:4] in ascii(str(raised.value))

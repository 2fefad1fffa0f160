"""What holds for every format that is registered: a new one is in it by its entry alone."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from format_cases import FORMATS as CASES

from headrace import sources
from headrace.errors import ConfigError, HeadraceError
from headrace.sources import Format, JsonlWriter, Source, TextSource, Writer, formats, open_source, registry
from headrace.sources.formats import FORMATS, find_format, format_named, format_of_target, register_format
from headrace.sources.naming.classes import first_option_of
from headrace.testing import check_format

pytestmark = pytest.mark.long

NEEDS = {"parquet": "pyarrow", "arrow": "pyarrow", "ogg_zip": "soundfile", "images": "PIL"}
OPTIONS = {"ogg_zip": {"sample_rate": 8000}}


class OwnSource(TextSource):
    """Lines, under another name."""


BY_LIBRARY = {"huggingface"}  # only its library writes it
WRITTEN = [name for name, entry in FORMATS.items() if entry.writer]


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_a_writer_takes_its_source_gives_back_or_it_is_refused(name: str) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}")
    assert check_format(FORMATS[name], writer_options=OPTIONS.get(name)) > 0


@pytest.mark.parametrize("name", FORMATS)
def test_an_entry_names_classes_that_there_are(name: str) -> None:
    entry = FORMATS[name]
    cls = registry.source_class_of({"class": entry.source_name})
    assert issubclass(cls, Source)
    assert registry.source_class_of({"class": entry.source}) is cls
    assert first_option_of(cls) is not None
    assert formats.format_of_source(cls) is entry
    for known in (name, entry.source, entry.source_name, entry.writer, entry.writer_name):
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
    writer = f"`{entry.writer_name}`" if entry.writer_name else ""
    cells = [entry.docs or entry.title, f"`{entry.source_name}`", writer, entry.suits]
    line = "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"
    assert line in (Path(__file__).parents[2] / "docs" / "how-to" / "converting.md").read_text().splitlines()


@pytest.fixture
def registered():
    """Take back what a test registers."""
    before = dict(formats._formats)
    formats.load_entry_points.cache_clear()
    yield
    formats._formats.clear()
    formats._formats.update(before)
    formats.load_entry_points.cache_clear()


def test_a_format_of_ones_own_is_opened_written_and_converted_like_others(registered, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TextSource"):  # one class reads one format
        register_format(Format("lines2", "own lines", TextSource, suffixes=(".own",)))
    own = Format("lines2", "own lines", OwnSource, suffixes=(".own",))
    assert register_format(own) is own
    assert register_format(own) is own
    (tmp_path / "x.own").write_text("a\nbc\n")
    source = open_source(tmp_path / "x.own", index=None)
    assert type(source) is OwnSource
    assert len(source) == 2
    source.close()
    for wrong in (
        Format("lines2", "twice", "a.b:C"),
        Format("lines3", "a name that is there", "a.b:HDFSource"),
        Format("lines3", "a suffix that is there", "a.b:C", suffixes=(".hdf",)),
    ):
        with pytest.raises(ConfigError):
            register_format(wrong)
    with pytest.raises(ConfigError, match="Class"):
        Format("x", "x", "HDFSource")

    class Inside(TextSource):
        """Nobody can import it."""

    with pytest.raises(ConfigError, match="in a function"):
        Format("x", "x", Inside)
    with pytest.raises(ConfigError, match="suffixes"):
        Format("x", "x", "a.b:C", suffixes=".x")


def test_formats_of_other_packages_are_looked_for_when_something_is_not_known(
    registered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site"
    info = package / "own_format-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-format\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[headrace.formats]\nown = own_format_of_a_test:OWN\n")
    (package / "own_format_of_a_test.py").write_text(
        "from headrace.sources import Format, TextSource\n"
        "class OwnSource(TextSource):\n    'Lines.'\n"
        "OWN = Format('own', 'own', OwnSource, suffixes=('.own',))\n"
    )
    monkeypatch.syspath_prepend(str(package))
    (tmp_path / "x.own").write_text("a\nbc\n")
    (tmp_path / "x.txt").write_text("a\nbc\n")
    open_source(tmp_path / "x.txt", index=None).close()
    assert "own" not in FORMATS
    source = open_source(tmp_path / "x.own", index=None)
    assert type(source).__name__ == "OwnSource"
    source.close()
    assert format_named("own") is FORMATS["own"]
    assert registry.source_class_of({"class": "OwnSource"}) is type(source)


DIRECT = ["AudioFolderSource", "AudioSource", "HDFSource", "JsonlSource", "TarSource", "TextSource"]


@pytest.mark.parametrize("path", ["half\ud800.x", "zero\0.x"], ids=["half of a pair", "zero byte"])
@pytest.mark.parametrize("name", [None, *FORMATS, *DIRECT])
def test_a_name_that_no_file_can_have_is_an_error_that_shows_it(name: str | None, path: str) -> None:
    open_it = getattr(sources, name) if name in DIRECT else partial(open_source, source_class=name)
    with pytest.raises(HeadraceError) as raised:
        open_it(path)
    assert path[:4] in ascii(str(raised.value))


# As a notebook or a script has it: nothing that a worker could import.
SCRIPT = """
import struct
import sys
from collections import Counter

import headrace as hr
from headrace.sources import Format, TextSource, register_format

HEAD = struct.Struct("<I")  # which pickle cannot carry


class OwnSource(TextSource):
    def __init__(self, files, *, index="auto"):
        assert HEAD.size == 4
        super().__init__(files, index=index)


register_format(Format("own", "own", OwnSource, suffixes=(".own",)))
path = {"class": "SourceDataset", "files": sys.argv[1]}
MAKERS = {
    "source": lambda: path,
    "composed": lambda: {"class": "ConcatDataset", "datasets": [path, path]},
    "distributed": lambda: {
        "class": "DistributeFilesDataset", "files": [sys.argv[1]], "get_sub_epoch_dataset": lambda files: path
    },
}


def tags_of(config, num_workers):
    return [tag for batch in hr.DataLoader(config, batch_size=2, num_workers=num_workers) for tag in batch.tags]


def main():
    for name, make in MAKERS.items():
        assert Counter(tags_of(make(), 2)) == Counter(tags_of(make(), 0)), name
    inner = hr.init_dataset({"class": "MultiProcDataset", "dataset": path, "num_workers": 2, "buffer_size": 2})
    assert len(list(inner.epoch(1))) == 5
    inner.close()
    print("all known")


if __name__ == "__main__":
    main()
"""


def test_workers_know_the_formats_that_their_trainer_registered(tmp_path: Path) -> None:
    (tmp_path / "x.own").write_text("a\nbc\nd\nef\ng\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, tmp_path / "train.py", tmp_path / "x.own"], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "all known\n", done.stderr


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ["module", "installed"])
def test_convert_writes_a_format_that_the_command_names(tmp_path: Path, how: str) -> None:
    (tmp_path / "own_lines.py").write_text(
        "from headrace.sources import Format, JsonlSource, JsonlWriter\n"
        "class OwnSource(JsonlSource):\n    'Lines.'\n"
        "class OwnWriter(JsonlWriter):\n    'Lines.'\n"
        "OWN = Format('own', 'own', OwnSource, writer=OwnWriter, suffixes=('.own',))\n"
    )
    with JsonlWriter(tmp_path / "a.jsonl") as writer:
        for idx in range(6):
            writer.append(f"seq-{idx}", {"data": np.arange(idx + 1)})
    script = Path(sysconfig.get_path("scripts"), "headrace")
    if how == "installed" and not script.exists():
        pytest.skip("the command is not installed")
    program = [sys.executable, "-m", "headrace"] if how == "module" else [str(script)]
    command = [*program, "convert", "--num-workers", "2", "--shard-seqs", "2"]
    steps = (["--to", "own_lines:OWN", "a.jsonl", "b.own"], ["--from", "own_lines:OwnSource", "b-*.own", "c.jsonl"])
    for arguments in steps:
        found = [
            name for word in arguments for name in (sorted(map(str, tmp_path.glob(word))) if "*" in word else [word])
        ]
        done = subprocess.run([*command, *found], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    assert "".join(path.read_text() for path in sorted(tmp_path.glob("c-*.jsonl"))).count("seq-") == 6
    look = [*program, "inspect", "--from", "own_lines:OwnSource", "b-00000.own"]
    done = subprocess.run(look, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.stderr, sorted(path.name for path in tmp_path.iterdir()))

"""Files by patterns, braces, folders and URLs: the same at every entrance, and the same data as by their paths."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import release_copies
from headrace.sources import HDFSource, HDFWriter, JsonlSource, Source, TarSource, TarWriter, open_source
from servers import FileServer, S3Server, has_s3


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADRACE_FILE_CACHE_OPTS", json.dumps({"cache_directory": str(tmp_path / "cache")}))
    yield
    release_copies()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with three files of each of three formats, in folders of their own."""
    folder = tmp_path / "corpus"
    for number in range(3):
        arrays = [np.arange(4 * number + 2 * i, dtype=np.float32).reshape(-1, 2) for i in range(3)]
        for kind, writer_class in (("hdf", HDFWriter), ("tar", TarWriter)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            with writer_class(folder / kind / f"p{number}.{kind}") as writer:
                for i, array in enumerate(arrays):
                    writer.append(f"{number}-{i}", {"data": array})
        (folder / "jsonl").mkdir(exist_ok=True)
        lines = [json.dumps({"tag": f"{number}-{i}", "data": array.tolist()}) for i, array in enumerate(arrays) if i]
        (folder / "jsonl" / f"p{number}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def content(source: Source) -> list[tuple[str, list[list[float]]]]:
    found = [(str(source.index.tags[i]), source.read(i, "data").tolist()) for i in range(len(source))]
    source.close()
    return found


@pytest.mark.parametrize(("kind", "cls"), [("hdf", HDFSource), ("tar", TarSource), ("jsonl", JsonlSource)])
def test_patterns_braces_and_folders_are_the_same_at_every_entrance(corpus: Path, kind: str, cls: type[Source]) -> None:
    folder = corpus / kind
    expected = content(open_source([folder / f"p{number}.{kind}" for number in range(3)]))
    assert len(expected) in (6, 9)
    for files in (folder, str(folder / "*"), str(folder / f"p{{0..2}}.{kind}"), str(folder / f"p{{0,1,2}}.{kind}")):
        assert content(open_source(files)) == expected
        assert content(cls(files)) == expected  # type: ignore[call-arg]
        for data in (hr.SourceDataset(files), files):
            with hr.DataLoader(data, batch_size=2) as loader:
                assert [tag for batch in loader for tag in batch.tags] == [tag for tag, _ in expected]
    assert [tag[0] for tag, _ in content(cls(str(folder / f"p{{2,0}}.{kind}")))][:: len(expected) // 3] == ["2", "0"]  # type: ignore[call-arg]


def test_a_pattern_that_matches_nothing_names_itself_and_the_nearest_folder(corpus: Path) -> None:
    pattern = str(corpus / "hdf" / "none" / "*.hdf")
    for entrance in (open_source, HDFSource, hr.SourceDataset):
        with pytest.raises(SourceError, match=r"(?s)none/\*\.hdf.*nearest folder.*corpus/hdf, has p0\.hdf") as error:
            entrance(pattern)
        assert pattern in str(error.value)
    with pytest.raises(SourceError, match=r"has no HDF5 files"):
        HDFSource(corpus / "tar")


def test_a_web_server_is_read_as_the_files_are_and_a_changed_file_anew(corpus: Path) -> None:
    pytest.importorskip("aiohttp")
    names = ["p0.tar", "p1.tar"]
    expected = content(TarSource([corpus / "tar" / name for name in names]))
    with FileServer({name: (corpus / "tar" / name).read_bytes() for name in names}) as server:
        urls = [server.url(name) for name in names]
        source = open_source(urls)
        copy = pickle.loads(pickle.dumps(source))
        assert content(copy) == content(source) == expected
        assert content(TarSource(server.url("p{0..1}.tar"))) == expected
        loader = hr.DataLoader(server.url("p{0,1}.tar"), batch_size=2, num_workers=2)
        with loader:
            assert [tag for batch in loader for tag in batch.tags] == [tag for tag, _ in expected]
        num_reads = server.num_requests()
        assert content(open_source(urls)) == expected
        assert server.num_requests() == num_reads  # copies are compared with the server, and not fetched again
        server.files["p1.tar"] = (corpus / "tar" / "p2.tar").read_bytes()
        assert content(open_source(urls)) == content(
            TarSource([corpus / "tar" / name for name in ("p0.tar", "p2.tar")])
        )
        with pytest.raises(SourceError, match=r"none\.tar"):
            open_source(server.url("none.tar"))


def test_a_store_is_read_by_patterns_and_folders(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_s3():
        pytest.skip("needs moto and s3fs")
    expected = content(HDFSource(corpus / "hdf"))
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        for number in range(3):
            server.put("bucket", f"train/p{number}.hdf", (corpus / "hdf" / f"p{number}.hdf").read_bytes())
        for files in ("s3://bucket/train/*.hdf", "s3://bucket/train/", "s3://bucket/train/p{0..2}.hdf"):
            assert content(open_source(files)) == expected
            assert content(HDFSource(files)) == expected
        dataset = hr.HDFDataset("s3://bucket/train/*.hdf")
        dataset.init_seq_order(1)
        assert dataset.num_seqs == len(expected)
        with pytest.raises(SourceError, match=r"no file matches the pattern 's3://bucket/dev/\*\.hdf'"):
            open_source("s3://bucket/dev/*.hdf")


def test_what_is_named_by_its_path_is_not_read_by_a_url() -> None:
    with pytest.raises(ConfigError, match=r"(?s)named by the paths.*headrace convert"):
        hr.sources.AudioFolderSource("https://example.org/recordings/a.wav")


def test_the_text_of_a_config_is_none_of_a_pattern(corpus: Path) -> None:
    path = corpus / "hdf" / "p1.hdf"
    for config in (f"{{'class': 'HDFDataset', 'files': ['{path}'], 'name': 'x'}}", f"HDFDataset:files=['{path}']"):
        with hr.DataLoader(config, batch_size=3) as loader:
            assert next(iter(loader)).tags == ["1-0", "1-1", "1-2"]

"""Files by patterns, braces, folders and URLs: the same at every entrance, and the same data as by their paths."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headrace as hr
from headrace.cli.opening import find_data_files
from headrace.errors import ConfigError, SourceError
from headrace.files.cache.local_copies import release_copies
from headrace.sources import (
    HDFSource,
    HDFWriter,
    JsonlSource,
    Source,
    TarSource,
    TarWriter,
    TokenSource,
    TokenWriter,
    open_source,
)
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


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A folder with two files of three documents each, and what lies beside them."""
    folder = tmp_path / "tokens"
    folder.mkdir()
    for name in "ab":
        with TokenWriter(folder / f"{name}.bin", labels={"data": list("xyz")}) as writer:
            for number in range(3):
                writer.append(f"{name}-{number}", {"data": np.arange(number + 1, dtype=np.int32) % 3})
    return folder


def test_files_that_belong_to_others_are_read_with_them_and_not_twice(tokens: Path) -> None:
    expected = content(open_source([tokens / "a.bin", tokens / "b.bin"]))
    assert len(expected) == 6
    everything = sorted(tokens.iterdir())
    assert len(everything) == 8
    pairs = [path for path in everything if path.suffix in (".bin", ".idx")]
    for files in (tokens, str(tokens / "*"), str(tokens / "*.{bin,idx}"), pairs, everything, everything[::-1]):
        found = content(open_source(files))
        assert sorted(found) == expected
        assert sorted(content(TokenSource(files, by="document"))) == expected
        with hr.DataLoader(hr.SourceDataset(files), batch_size=4) as loader:
            assert sum(len(batch.tags) for batch in loader) == 6
    with hr.DataLoader(tokens, batch_size=4) as loader:
        assert sum(len(batch.tags) for batch in loader) == 6
    assert content(open_source(tokens / "a.idx")) == content(open_source([tokens / "a.idx"])) == expected[:3]


def test_a_pattern_that_matches_nothing_names_itself_and_the_nearest_folder(corpus: Path) -> None:
    pattern = str(corpus / "hdf" / "none" / "*.hdf")
    for entrance in (open_source, HDFSource, hr.SourceDataset):
        with pytest.raises(SourceError, match=r"(?s)none/\*\.hdf.*nearest folder.*corpus/hdf, has p0\.hdf") as error:
            entrance(pattern)
        assert pattern in str(error.value)
    with pytest.raises(SourceError, match=r"has no HDF5 files"):
        HDFSource(corpus / "tar")


@pytest.mark.extra
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


@pytest.mark.extra
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


@pytest.mark.extra
def test_files_that_give_a_sequence_each_are_not_read_by_urls_at_any_entrance() -> None:
    pytest.importorskip("aiohttp")
    with FileServer({"a.png": b"no image", "b.png": b"no image"}) as server:
        urls = server.url("{a,b}.png")
        entrances = (
            open_source,
            hr.SourceDataset,
            lambda files: hr.DataLoader(files, batch_size=2),
            lambda url: find_data_files([url]),
        )
        for opened in entrances:  # each would be named, and as an image labelled, by the folder of its copy
            num_requests = server.num_requests()
            with pytest.raises(ConfigError, match=r"(?s)named by the paths.*a\.png.*headrace convert"):
                opened(server.url("a.png"))
            assert server.num_requests() == num_requests  # nothing was fetched for it
            with pytest.raises(ConfigError, match=r"(?s)named by the paths.*a\.png.*headrace convert"):
                opened(urls)


@pytest.mark.extra
def test_manifests_vocabularies_and_symbols_are_read_by_their_urls(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.wav", np.zeros(80), 8000)
    table = "audio,text,word\na.wav,ab,x\n"
    line = json.dumps({"audio": "a.wav", "text": "ab", "word": "x"}) + "\n"
    files = {"m.jsonl": line, "m.csv": table, "chars.txt": "a\nb\n", "syms.txt": "a\nb\n[END]\n", "t.txt": "ab\n"}
    with FileServer({name: text.encode() for name, text in files.items()}) as server:
        vocab = {"class": "CharacterTargets", "vocab_file": server.url("chars.txt"), "unknown_label": None}
        targets = {"text": {"field": "text", "vocab": vocab}}
        for manifest in (server.url("m.jsonl"), server.url("m.csv")):
            with hr.AudioDataset(manifest, root=tmp_path, targets=targets) as dataset:
                copy = pickle.loads(pickle.dumps(dataset))
                for own in (dataset, copy):
                    (seq,) = own.epoch(1)
                    assert (seq.tag, len(seq["data"]), seq["text"].tolist()) == ("a.wav", 80, [0, 1])
                copy.close()
            with pytest.raises(ConfigError, match=r"(?s)does not say where its recordings are.*give root="):
                hr.AudioDataset(manifest, targets=targets)
        with hr.LmDataset(server.url("t.txt"), orth_symbols_file=server.url("syms.txt")) as dataset:
            (seq,) = dataset.epoch(1)
            assert seq["data"].tolist() == [0, 1, 2]
        with pytest.raises(SourceError, match=r"none\.txt"):
            hr.LmDataset(server.url("t.txt"), orth_symbols_file=server.url("none.txt"))


def test_recordings_are_not_fetched_one_by_one_and_that_is_said(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    url = "s3://key:secret@bucket/a.wav"
    manifest, table = tmp_path / "m.jsonl", tmp_path / "m.csv"
    manifest.write_text(json.dumps({"audio": url}) + "\n")
    table.write_text(f"audio\n{url}\n")
    for listed in (manifest, table, [url], [{"audio": url}]):
        for root in (None, tmp_path, "/"):
            with pytest.raises(
                SourceError, match=r"(?s)'s3://bucket/a\.wav' is named by a URL.*copy them here"
            ) as error:
                hr.AudioDataset(listed, root=root)
            assert "secret" not in str(error.value)
    for listed in (manifest, ["a.wav"]):
        with pytest.raises(ConfigError, match=r"(?s)a folder on this machine.*s3://bucket/recordings"):
            hr.AudioDataset(listed, root="s3://bucket/recordings")
    soundfile.write(tmp_path / "a.wav", np.zeros(80), 8000)
    with hr.AudioDataset([f"file://{tmp_path}/a.wav"]) as dataset:
        assert len(dataset.source) == 1
    manifest.write_text(json.dumps({"audio": f"file://{tmp_path}/a.wav"}) + "\n")  # absolute: below no root but "/"
    with hr.AudioDataset(manifest, root="/") as dataset:
        assert len(dataset.source) == 1
    with pytest.raises(SourceError, match="outside its root"):
        hr.AudioDataset(manifest, root=tmp_path / "corpus")
    with pytest.raises(ConfigError, match="2 files match"):
        hr.AudioDataset(str(tmp_path / "m.*"))

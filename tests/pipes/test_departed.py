"""Every class that torchdata documented is here, or says what to use in its place, in code and on the page."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import headrace.pipes.iter as iter_pipes
from headrace.errors import ConfigError, HeadraceError
from headrace.pipes.core.registry import DEPARTED, list_functions
from headrace.pipes.iter import HttpReader, HuggingFaceHubReader, IterableWrapper, OnlineReader, Sampler

# `torchdata.datapipes.iter.__all__` of 0.7.1.
DOCUMENTED = re.findall(
    r"\w+",
    """
    AISFileLister AISFileLoader BatchAsyncMapper BatchMapper Batcher BucketBatcher Bz2FileLoader CSVDictParser
    CSVParser Collator Concater Cycler DataFrameMaker Decompressor Demultiplexer Dropper EndOnDiskCacheHolder
    Enumerator Extractor FSSpecFileLister FSSpecFileOpener FSSpecSaver FileLister FileOpener Filter FlatMapper
    Flattener Forker FullSync GDriveReader Grouper HashChecker Header HttpReader HuggingFaceHubReader
    InBatchShuffler InMemoryCacheHolder IndexAdder IoPathFileLister IoPathFileOpener IoPathSaver IterDataPipe
    IterKeyZipper IterableWrapper JsonParser LengthSetter LineReader MapKeyZipper MapToIterConverter Mapper
    MaxTokenBucketizer Multiplexer MultiplexerLongest OnDiskCacheHolder OnlineReader ParagraphAggregator
    ParquetDataFrameLoader PinMemory Prefetcher RandomSplitter RarArchiveLoader Repeater RoundRobinDemultiplexer
    RoutedDecoder Rows2Columnar S3FileLister S3FileLoader SampleMultiplexer Sampler Saver ShardExpander
    ShardingFilter ShardingRoundRobinDispatcher ShuffledFlatMapper Shuffler Slicer StreamReader TFRecordLoader
    TarArchiveLoader ThreadPoolMapper UnBatcher UnZipper WebDataset XzFileLoader ZipArchiveLoader Zipper
    ZipperLongest
    """,
)
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "migrating-from-torchdata.md"


@pytest.mark.parametrize("name", DOCUMENTED)
def test_a_documented_class_is_here_or_says_what_to_use(name):
    if name not in DEPARTED:
        assert name in iter_pipes.__all__
        assert callable(getattr(iter_pipes, name))
        return
    function, advice = DEPARTED[name]
    assert hasattr(iter_pipes, name)
    with pytest.raises(ImportError, match=f"{name} is not part of") as info:
        getattr(iter_pipes, name)(IterableWrapper([]))
    assert isinstance(info.value, HeadraceError)
    assert advice in str(info.value)
    assert f"`{name}`" in PAGE.read_text()
    assert function not in list_functions(iter_pipes.IterPipe)


def test_a_functional_name_that_did_not_come_along_says_what_to_use():
    with pytest.raises(AttributeError, match="has no attribute 'load_from_tfrecord'; torchdata's was not ported, use"):
        IterableWrapper([]).load_from_tfrecord()
    with pytest.raises(AttributeError, match=r"'nothing'$"):
        IterableWrapper([]).nothing()
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        iter_pipes.Nothing  # noqa: B018


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        found = self.path == "/there"
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(f"line one\n{self.headers.get('X-Who')}\n".encode() if found else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def address():
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        server.daemon_threads = False
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("timeout", [None, 120])
def test_files_behind_urls_are_read(address, timeout):
    urls = IterableWrapper([f"{address}/there", f"{address}/gone"])
    for pipe in (HttpReader(urls, timeout, headers={"X-Who": "me"}), urls.read_from_remote(headers={"X-Who": "me"})):
        assert len(pipe) == 2
        lines = iter(pipe.readlines())
        assert [next(lines) for _ in range(2)] == [(f"{address}/there", b"line one"), (f"{address}/there", b"me")]
        with pytest.raises(OSError, match="404") as caught:
            next(lines)
        caught.value.close()
    with pytest.warns(UserWarning, match="gone is skipped: HTTP Error 404"):
        assert [url for url, _ in urls.read_from_http(skip_on_error=True)] == [f"{address}/there"]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/file", "/etc/passwd", "https://drive.google.com/x"])
def test_other_urls_are_refused_even_if_errors_are_skipped(url):
    with pytest.raises(ConfigError, match=r"not an http URL|is a web page"):
        list(OnlineReader(IterableWrapper([url]), skip_on_error=True))


@pytest.mark.extra
def test_rows_of_hugging_face_datasets_are_streamed(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setattr(pytest.importorskip("tqdm").tqdm, "monitor_interval", 0)  # which leaves a thread behind
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(5)))
    path = str(tmp_path / "rows.jsonl")
    rows = iter(HuggingFaceHubReader("json", data_files=path, split="train"))
    assert [next(rows) for _ in range(3)] == [{"n": n} for n in range(3)]
    with pytest.raises(ConfigError, match="has the splits train"):
        list(HuggingFaceHubReader("json", data_files=path))


class Backwards:
    def __init__(self, data_source, step=1):
        self.numbers = range(len(data_source) - 1, -1, -step)

    def __iter__(self):
        return iter(self.numbers)


def test_a_sampler_gives_numbers_of_items():
    assert list(Sampler(IterableWrapper("abc"))) == [0, 1, 2]
    assert len(Sampler(IterableWrapper("abc"))) == 3
    backwards = Sampler(IterableWrapper("abcde"), Backwards, sampler_kwargs={"step": 2})
    assert list(backwards) == list(backwards) == [4, 2, 0]
    with pytest.raises(TypeError, match="length"):
        len(backwards)
    with pytest.raises(ConfigError, match="needs a pipe that knows its length"):
        Sampler(IterableWrapper("abc").filter(bool))


@pytest.mark.extra
def test_torchs_samplers_take_these_pipes():
    sampler = pytest.importorskip("torch.utils.data.sampler")
    assert sorted(Sampler(IterableWrapper(range(9)), sampler.RandomSampler)) == list(range(9))

"""The functional forms, declared for type checkers and editors. Written by `tests/pipes/method_stub.py`.

Parameters are documented at the operations: `map` is `Mapper`, see `headrace.pipes.iter` and `.map`.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from headrace.pipes.core.base import IterPipe, MapPipe
from headrace.pipes.ops.batch import DataChunk
from headrace.pipes.ops.branches.join import SampleMultiplexer
from headrace.pipes.ops.buffers.disk_cache import OnDiskCacheEnd
from headrace.pipes.ops.buffers.prefetch import pin_memory_fn
from headrace.pipes.ops.collate import Conversion, default_collate
from headrace.pipes.ops.files.archives import CompressionType, Decompressor
from headrace.pipes.ops.files.parse import join_lines
from headrace.pipes.ops.map_style import same
from headrace.pipes.sharding import SHARDING_PRIORITIES

class IterMethods:
    """The functional forms of iterable pipes."""

    def add_index(self, index_name: str = "index") -> IterPipe[Any]:
        """Add the number of the item, from 0, to each dict; yields shallow copies."""

    def async_map_batches(
        self,
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> IterPipe[Any]:
        """Await a coroutine for each item, those of a batch together. The order is that of the source."""

    def batch(self, batch_size: int, drop_last: bool = False, wrapper_class: type[Any] = DataChunk) -> IterPipe[Any]:
        """Make batches of consecutive items."""

    def bucketbatch(
        self,
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], list[Any]] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterPipe[Any]:
        """Shuffle pools of items, sort each bucket of a pool, cut buckets into batches, and shuffle the batches."""

    def check_hash(self, hash_dict: Mapping[str, str], hash_type: str = "sha256", rewind: bool = True) -> IterPipe[Any]:
        """Check the hash of each file, and pass the item on."""

    def collate(
        self, conversion: Conversion = default_collate, collate_fn: Callable[[Any], Any] | None = None
    ) -> IterPipe[Any]:
        """Collate each batch."""

    def concat(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Concatenate pipes: yield the items of the first source, then those of the next. `a + b` is the same."""

    def cycle(self, count: int | None = None) -> IterPipe[Any]:
        """Read the source several times. Each time is an epoch of its own: a shuffle gives another order."""

    def decompress(self, file_type: str | CompressionType | None = None) -> IterPipe[Any]:
        """Yield (path, file object that decompresses as it is read); for tar and zip, the archive object."""

    def demux(
        self,
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterPipe[Any]]:
        """Split a pipe into several: a function chooses the one that gets an item."""

    def drop(self, indices: Hashable | list[Hashable]) -> IterPipe[Any]:
        """Drop columns."""

    def end_caching(
        self,
        mode: str = "wb",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
    ) -> OnDiskCacheEnd:
        """End the section that `on_disk_cache` began: write its results to files and yield their paths."""

    def enumerate(self, starting_index: int = 0) -> IterPipe[Any]:
        """Number the items: yield (number, item)."""

    def extract(self, file_type: str | CompressionType | None = None) -> Decompressor:
        """Decompress files: the older name of `decompress`."""

    def filter(self, filter_fn: Callable[..., Any], input_col: Any = None) -> IterPipe[Any]:
        """Keep the items for which a function returns True. Open files in the other items are closed."""

    def flatmap(self, fn: Callable[..., Any] | None = None, input_col: Any = None) -> IterPipe[Any]:
        """Apply a function that returns several values to each item, and yield the values one by one."""

    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> IterPipe[Any]:
        """Flatten columns by one level: a list, tuple or dict in a column is replaced by its elements."""

    def fork(
        self, num_instances: int, buffer_size: int = 1000, copy: str | None = None
    ) -> list[IterPipe[Any]] | IterPipe[Any]:
        """Fork a pipe into several, each of which gives all items."""

    def fullsync(self, timeout: float = 1800) -> IterPipe[Any]:
        """End the epoch on all ranks when one has no more items, so that none waits for it in a collective."""

    def groupby(
        self,
        group_key_fn: Callable[[Any], Any],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> IterPipe[Any]:
        """Group items with the same key."""

    def header(self, limit: int | None = 10) -> IterPipe[Any]:
        """Yield only the first items, and read no more than those from the source."""

    def in_batch_shuffle(self) -> IterPipe[Any]:
        """Shuffle the items within each batch."""

    def in_memory_cache(self, size: int | None = None) -> IterPipe[Any]:
        """Keep the items of the first complete epoch, and yield the same objects in later epochs."""

    def lines_to_paragraphs(self, joiner: Callable[[list[Any]], Any] = join_lines) -> IterPipe[Any]:
        """Join the lines of a file into paragraphs, which end at empty lines."""

    def list_files(
        self,
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> IterPipe[Any]:
        """Yield the paths of the files in folders, sorted; files of a folder come before those of its subfolders."""

    def list_files_by_fsspec(self, masks: str | list[str] = "", **kwargs: Any) -> IterPipe[Any]:
        """Yield the sorted paths of the entries of folders in any file system of fsspec, with the folder's protocol."""

    def load_from_bz2(self, length: int = -1) -> IterPipe[Any]:
        """Decompress bz2 files: yield (path without its suffix, file object that decompresses as it is read)."""

    def load_from_tar(self, mode: str = "r:*", length: int = -1) -> IterPipe[Any]:
        """Yield (archive/name, open file) for each file in tar archives, in the order of the archive."""

    def load_from_xz(self, length: int = -1) -> IterPipe[Any]:
        """Decompress xz files: yield (path without its suffix, file object that decompresses as it is read)."""

    def load_from_zip(self, length: int = -1) -> IterPipe[Any]:
        """Yield (archive/name, open file) for each file in zip archives, in the order of the archive."""

    def map(self, fn: Callable[..., Any], input_col: Any = None, output_col: Any = None) -> IterPipe[Any]:
        """Apply a function to each item, or to columns of it."""

    def map_batches(
        self, fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: Any = None
    ) -> IterPipe[Any]:
        """Apply a function to lists of items, and yield the items that it returns one by one."""

    def max_token_bucketize(
        self,
        max_token_count: int,
        len_fn: Callable[[Any], int] = len,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> IterPipe[Any]:
        """Make batches of items of similar length, each as large as a budget of tokens allows."""

    def mux(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Yield an item of each source in turn, in complete rounds: it ends when the shortest source does."""

    def mux_longest(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Yield an item of each source in turn, until all have ended; those that have ended are skipped."""

    def on_disk_cache(
        self,
        filepath_fn: Callable[[Any], Any] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> IterPipe[Any]:
        """Begin a section whose results are kept in files; `end_caching` ends it."""

    def open_files(self, mode: str = "r", encoding: str | None = None, length: int = -1) -> IterPipe[Any]:
        """Yield (path, open file). A file closes itself when its last reference is gone."""

    def open_files_by_fsspec(
        self, mode: str = "r", *, kwargs_for_open: dict[str, Any] | None = None, **kwargs: Any
    ) -> IterPipe[Any]:
        """Yield (path, open file) for paths in any file system of fsspec."""

    def parse_csv(
        self,
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> IterPipe[Any]:
        """Yield the rows of CSV files as lists."""

    def parse_csv_as_dict(
        self,
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> IterPipe[Any]:
        """Yield the rows of CSV files as dicts, whose keys are the first row."""

    def parse_json_files(self, **kwargs: Any) -> IterPipe[Any]:
        """Yield (path, parsed content) of JSON files."""

    def pin_memory(self, device: Any = None, pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn) -> IterPipe[Any]:
        """Pin the memory of the tensors of each item, in a thread that is two items ahead."""

    def prefetch(self, buffer_size: int = 10) -> IterPipe[Any]:
        """Read the source in a thread, some items ahead. An error of the source is raised after the items before it."""

    def random_split(
        self, weights: Mapping[Any, float], seed: int, total_length: int | None = None, target: Any = None
    ) -> list[IterPipe[Any]] | IterPipe[Any]:
        """Split a pipe at random, in the same way in every epoch."""

    def read_from_http(
        self, timeout: float | None = None, skip_on_error: bool = False, *, headers: Mapping[str, str] | None = None
    ) -> IterPipe[Any]:
        """Yield (URL, open binary file) for http and https URLs."""

    def read_from_remote(
        self, timeout: float | None = None, skip_on_error: bool = False, *, headers: Mapping[str, str] | None = None
    ) -> IterPipe[Any]:
        """Yield (URL, open binary file) for http and https URLs."""

    def read_from_stream(self, chunk: int | None = None) -> IterPipe[Any]:
        """Yield (path, content) of files."""

    def readlines(
        self,
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> IterPipe[Any]:
        """Yield the lines of files."""

    def repeat(self, times: int) -> IterPipe[Any]:
        """Yield each item several times in succession."""

    def round_robin_demux(self, num_instances: int, buffer_size: int = 1000) -> list[IterPipe[Any]]:
        """Split a pipe into several, which get the items in turn."""

    def rows2columnar(self, column_names: list[str] | None = None) -> IterPipe[Any]:
        """Turn lists of rows into dicts of columns."""

    def sample_multiplexer(
        self, *datapipes: IterPipe[Any], weights: list[float] | None = None, seed: int | None = None
    ) -> SampleMultiplexer:
        """Mix this pipe with others, see `SampleMultiplexer`."""

    def save_by_fsspec(
        self,
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IterPipe[Any]:
        """Write each item to a file in any file system of fsspec, and yield its path."""

    def save_to_disk(self, mode: str = "w", filepath_fn: Callable[[Any], str] | None = None) -> IterPipe[Any]:
        """Write each item to a file, which appears whole or not at all, and yield its path."""

    def set_epoch(self, epoch: int) -> IterPipe[Any]:
        """Set the number of the next epoch of a graph: its random numbers then follow from that and the seeds alone."""

    def set_length(self, length: int) -> IterPipe[Any]:
        """Set what `len` returns. The items are not changed."""

    def shard_expand(self) -> IterPipe[Any]:
        """Expand ranges in braces: `a-{000..009}` makes ten names. Several ranges multiply, the last varies fastest."""

    def sharding_filter(self, sharding_group_filter: SHARDING_PRIORITIES | None = None) -> IterPipe[Any]:
        """Keep every n-th item, as set by `apply_sharding`; all items until it is called."""

    def sharding_round_robin_dispatch(
        self, sharding_group_filter: SHARDING_PRIORITIES | None = SHARDING_PRIORITIES.MULTIPROCESSING
    ) -> IterPipe[Any]:
        """Have everything upstream run in one process, which deals its items out to the workers in turn."""

    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int = 0) -> IterPipe[Any]:
        """Shuffle with a buffer: yield a random item from it for each new one, then the rest in random order."""

    def shuffled_flatmap(
        self, fn: Callable[..., Any] | None = None, input_col: Any = None, buffer_size: int = 100
    ) -> IterPipe[Any]:
        """Keep several iterables open, and yield the next value of a random one each time: interleaves shards."""

    def slice(self, index: int | list[Hashable], stop: int | None = None, step: int | None = None) -> IterPipe[Any]:
        """Keep some of the columns."""

    def threadpool_map(
        self,
        fn: Callable[..., Any],
        input_col: Any = None,
        output_col: Any = None,
        scheduled_tasks: int = 128,
        max_workers: int | None = None,
        **threadpool_kwargs: Any,
    ) -> IterPipe[Any]:
        """Apply a function to each item as `Mapper` does, in a pool of threads. The order is that of the source."""

    def to_map_datapipe(self, key_value_fn: Callable[[Any], tuple[Any, Any]] | None = None) -> MapPipe[Any]:
        """Load a pipe of (key, value) pairs into memory when the first item is requested."""

    def unbatch(self, unbatch_level: int = 1) -> IterPipe[Any]:
        """Yield the items of batches one by one."""

    def unzip(
        self, sequence_length: int, buffer_size: int = 1000, columns_to_skip: Sequence[int] | None = None
    ) -> list[IterPipe[Any]]:
        """Split a pipe into one for each column of its items."""

    def webdataset(self) -> IterPipe[Any]:
        """Join consecutive files with the same stem into a dict: suffix -> data, and the stem as `__key__`."""

    def zip(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Yield tuples with an item of each source, until the shortest ends."""

    def zip_longest(self, *datapipes: IterPipe[Any], fill_value: Any = None) -> IterPipe[Any]:
        """Yield tuples with an item of each source, until the longest ends."""

    def zip_with_iter(
        self,
        ref_datapipe: IterPipe[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> IterPipe[Any]:
        """Join each item with the item of another pipe that has the same key."""

    def zip_with_map(
        self,
        map_datapipe: MapPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> IterPipe[Any]:
        """Join each item with the item of a map-style pipe for its key."""

class MapMethods:
    """The functional forms of map-style pipes."""

    def batch(self, batch_size: int, drop_last: bool = False, wrapper_class: type[Any] = DataChunk) -> MapPipe[Any]:
        """Make batches of consecutive items."""

    def concat(self, *datapipes: MapPipe[Any]) -> MapPipe[Any]:
        """Concatenate pipes: the first index of a pipe follows the last one of the pipe before."""

    def in_memory_cache(self) -> MapPipe[Any]:
        """Keep each item that was requested, and return the same object again."""

    def map(self, fn: Callable[[Any], Any] = same) -> MapPipe[Any]:
        """Apply a function to an item when the item is requested."""

    def shuffle(self, *, indices: Sequence[Any] | None = None) -> IterPipe[Any]:
        """Yield all items of a map-style pipe in random order. As in torchdata, this is an iterable pipe."""

    def to_iter_datapipe(self, indices: Sequence[Any] | None = None) -> IterPipe[Any]:
        """Yield the items of a map-style pipe one by one."""

    def unzip(self, sequence_length: int, columns_to_skip: Sequence[int] | None = None) -> list[MapPipe[Any]]:
        """Make a pipe of each column."""

    def zip(self, *datapipes: MapPipe[Any]) -> MapPipe[Any]:
        """Put the items of several pipes with the same index into a tuple."""

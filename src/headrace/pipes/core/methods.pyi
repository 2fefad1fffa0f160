"""The functional forms, declared for type checkers and editors; a test compares them with their classes.

What a parameter means is said where the operation is: `map` is `Mapper`, see `headrace.pipes.iter` and `.map`.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from ..ops.batch import DataChunk
from ..ops.buffers.prefetch import pin_memory_fn
from ..ops.collate import Conversion, default_collate
from ..ops.files.archives import CompressionType
from ..ops.files.parse import join_lines
from ..ops.map_style import same
from ..sharding import SHARDING_PRIORITIES
from .base import IterPipe, MapPipe

class IterMethods:
    """What can follow the dot of an iterable pipe."""

    def add_index(self, index_name: str = "index") -> IterPipe[Any]:
        """Add its number to each dict, in a copy."""

    def async_map_batches(
        self,
        async_fn: Callable[..., Awaitable[Any]],
        batch_size: int,
        input_col: Any = None,
        output_col: Any = None,
        max_concurrency: int = 32,
        flatten: bool = True,
    ) -> IterPipe[Any]:
        """Await a coroutine of each item, the items of a batch at once. The order is that of the source."""

    def batch(self, batch_size: int, drop_last: bool = False, wrapper_class: type[Any] = DataChunk) -> IterPipe[Any]:
        """Put so many items in a row into a list."""

    def bucketbatch(
        self,
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], list[Any]] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterPipe[Any]:
        """Shuffle a pool of items, sort buckets of it, cut them into batches, and shuffle those."""

    def check_hash(self, hash_dict: Mapping[str, str], hash_type: str = "sha256", rewind: bool = True) -> IterPipe[Any]:
        """Compare the hash of each file with the one that it should have, and pass it on."""

    def collate(
        self, conversion: Conversion = default_collate, collate_fn: Callable[[Any], Any] | None = None
    ) -> IterPipe[Any]:
        """Make arrays of each batch."""

    def concat(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Give the items of the first source, then those of the next. `a + b` is the same."""

    def cycle(self, count: int | None = None) -> IterPipe[Any]:
        """Go through the source several times. Each time is an epoch of its own: a shuffle gives another order."""

    def decompress(self, file_type: str | CompressionType | None = None) -> IterPipe[Any]:
        """Give (path, file to read the uncompressed bytes from); of tar and zip archives, the archive's object."""

    def demux(
        self,
        num_instances: int,
        classifier_fn: Callable[[Any], int | None],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[IterPipe[Any]]:
        """Give each item to one of several readers."""

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
    ) -> IterPipe[str]:
        """End the section that `on_disk_cache` began: write its results to files and give their paths."""

    def enumerate(self, starting_index: int = 0) -> IterPipe[Any]:
        """Give (number, item)."""

    def extract(self, file_type: str | CompressionType | None = None) -> IterPipe[Any]:
        """Do what `decompress` does; the older name."""

    def filter(self, filter_fn: Callable[..., Any], input_col: Any = None) -> IterPipe[Any]:
        """Keep the items for which a function is true. Open files in the others are closed."""

    def flatmap(self, fn: Callable[..., Any] | None = None, input_col: Any = None) -> IterPipe[Any]:
        """Apply a function that returns several values, and give them one by one."""

    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> IterPipe[Any]:
        """Replace columns by their parts, one level deep."""

    def fork(
        self, num_instances: int, buffer_size: int = 1000, copy: str | None = None
    ) -> list[IterPipe[Any]] | IterPipe[Any]:
        """Give the same items to several readers."""

    def fullsync(self, timeout: float = 1800) -> IterPipe[Any]:
        """End on all ranks when the first has no more items, so that none waits for one that has finished."""

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
        """Collect items with the same key."""

    def header(self, limit: int | None = 10) -> IterPipe[Any]:
        """Give the first items, and read no more than those from the source."""

    def in_batch_shuffle(self) -> IterPipe[Any]:
        """Shuffle the items within each batch."""

    def in_memory_cache(self, size: int | None = None) -> IterPipe[Any]:
        """Keep the items of the first whole epoch, and give the same objects in later ones."""

    def lines_to_paragraphs(self, joiner: Callable[[list[Any]], Any] = join_lines) -> IterPipe[Any]:
        """Join lines up to an empty one, or to the end of their file."""

    def list_files(
        self,
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> IterPipe[Any]:
        """Give the paths of the files in folders, sorted: those of a folder before those of the folders in it."""

    def list_files_by_fsspec(self, masks: str | list[str] = "", **kwargs: Any) -> IterPipe[Any]:
        """Give the sorted paths of what is in folders of any file system, with the protocol of the folder."""

    def load_from_bz2(self, length: int = -1) -> IterPipe[Any]:
        """Give (path without its suffix, file to read the uncompressed bytes from) of bz2 files."""

    def load_from_tar(self, mode: str = "r:*", length: int = -1) -> IterPipe[Any]:
        """Give (archive/name, open file) of each file in tar archives, in the order of the archive."""

    def load_from_xz(self, length: int = -1) -> IterPipe[Any]:
        """Give (path without its suffix, file to read the uncompressed bytes from) of xz files."""

    def load_from_zip(self, length: int = -1) -> IterPipe[Any]:
        """Give (archive/name, open file) of each file in zip archives, in the order of the archive."""

    def map(self, fn: Callable[..., Any], input_col: Any = None, output_col: Any = None) -> IterPipe[Any]:
        """Apply a function to each item, or to columns of it."""

    def map_batches(
        self, fn: Callable[[list[Any]], Iterable[Any]], batch_size: int, input_col: Any = None
    ) -> IterPipe[Any]:
        """Apply a function to lists of items, and give what it returns one by one."""

    def max_token_bucketize(
        self,
        max_token_count: int,
        len_fn: Callable[[Any], int] = len,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> IterPipe[Any]:
        """Make batches of items of like length, as large as a number of tokens allows."""

    def mux(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Give an item of each source in turn, in whole rounds: when a source has ended, so has this."""

    def mux_longest(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Give an item of each source in turn, until all have ended; those that have are passed over."""

    def on_disk_cache(
        self,
        filepath_fn: Callable[[Any], Any] | None = None,
        hash_dict: Mapping[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> IterPipe[Any]:
        """Begin a section whose results are kept in files; `end_caching` ends it."""

    def open_files(self, mode: str = "r", encoding: str | None = None, length: int = -1) -> IterPipe[Any]:
        """Give (path, open file). A file closes itself when nobody refers to it any more."""

    def open_files_by_fsspec(
        self, mode: str = "r", *, kwargs_for_open: dict[str, Any] | None = None, **kwargs: Any
    ) -> IterPipe[Any]:
        """Give (path, open file) of any file system."""

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
        """Give the rows of CSV files, as lists."""

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
        """Give the rows of CSV files, as dicts; the keys are the first row."""

    def parse_json_files(self, **kwargs: Any) -> IterPipe[Any]:
        """Give (path, what the JSON file holds)."""

    def pin_memory(self, device: Any = None, pin_memory_fn: Callable[[Any, Any], Any] = pin_memory_fn) -> IterPipe[Any]:
        """Pin the tensors of each item in a thread, two items ahead."""

    def prefetch(self, buffer_size: int = 10) -> IterPipe[Any]:
        """Read the source in a thread, some items ahead. What it raises comes where its item would have come."""

    def random_split(
        self, weights: Mapping[Any, float], seed: int, total_length: int | None = None, target: Any = None
    ) -> list[IterPipe[Any]] | IterPipe[Any]:
        """Split a pipe at random, in every epoch in the same way."""

    def read_from_http(
        self, timeout: float | None = None, skip_on_error: bool = False, *, headers: Mapping[str, str] | None = None
    ) -> IterPipe[Any]:
        """Open each URL of http and https."""

    def read_from_remote(
        self, timeout: float | None = None, skip_on_error: bool = False, *, headers: Mapping[str, str] | None = None
    ) -> IterPipe[Any]:
        """Open each URL, as `read_from_http` does."""

    def read_from_stream(self, chunk: int | None = None) -> IterPipe[Any]:
        """Give the contents of files."""

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
        """Give the lines of files."""

    def repeat(self, times: int) -> IterPipe[Any]:
        """Give each item several times in a row."""

    def round_robin_demux(self, num_instances: int, buffer_size: int = 1000) -> list[IterPipe[Any]]:
        """Deal items out to several readers, in turn."""

    def rows2columnar(self, column_names: list[str] | None = None) -> IterPipe[Any]:
        """Turn lists of rows into dicts of columns."""

    def sample_multiplexer(
        self, *datapipes: IterPipe[Any], weights: list[float] | None = None, seed: int | None = None
    ) -> IterPipe[Any]:
        """Mix this pipe with others, see `SampleMultiplexer`."""

    def save_by_fsspec(
        self,
        mode: str = "w",
        filepath_fn: Callable[[Any], str] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IterPipe[Any]:
        """Write each item to a file of any file system, and give the path."""

    def save_to_disk(self, mode: str = "w", filepath_fn: Callable[[Any], str] | None = None) -> IterPipe[Any]:
        """Write each item to a file, whole or not at all, and give the path."""

    def set_epoch(self, epoch: int) -> IterPipe[Any]:
        """Let the next iteration over a graph be the epoch of a number: it follows from that and the seeds alone."""

    def set_length(self, length: int) -> IterPipe[Any]:
        """Say what `len` is. The items stay as they are."""

    def shard_expand(self) -> IterPipe[Any]:
        """Expand ranges in braces: `a-{000..009}` is ten names. Several ranges multiply, the last varies fastest."""

    def sharding_filter(self, sharding_group_filter: SHARDING_PRIORITIES | None = None) -> IterPipe[Any]:
        """Keep every n-th item: a share, once `apply_sharding` has said which. Until then all of them."""

    def sharding_round_robin_dispatch(
        self, sharding_group_filter: SHARDING_PRIORITIES | None = SHARDING_PRIORITIES.MULTIPROCESSING
    ) -> IterPipe[Any]:
        """Mark that what comes before runs in one process, which deals its items out to the workers in turn."""

    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int = 0) -> IterPipe[Any]:
        """Fill a buffer, then give a random item of it for each item that comes in."""

    def shuffled_flatmap(
        self, fn: Callable[..., Any] | None = None, input_col: Any = None, buffer_size: int = 100
    ) -> IterPipe[Any]:
        """Keep several iterables open and give the next value of a random one: interleaves shards."""

    def slice(self, index: int | list[Hashable], stop: int | None = None, step: int | None = None) -> IterPipe[Any]:
        """Choose columns."""

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
        """Load a pipe of (key, value) into memory when the first item is asked for."""

    def unbatch(self, unbatch_level: int = 1) -> IterPipe[Any]:
        """Take lists apart."""

    def unzip(
        self, sequence_length: int, buffer_size: int = 1000, columns_to_skip: Sequence[int] | None = None
    ) -> list[IterPipe[Any]]:
        """Give each column of the items to a reader of its own."""

    def webdataset(self) -> IterPipe[Any]:
        """Join consecutive files with the same stem into a dict: suffix -> data, and `__key__`, the stem."""

    def zip(self, *datapipes: IterPipe[Any]) -> IterPipe[Any]:
        """Give tuples with an item of each source, until the shortest ends."""

    def zip_longest(self, *datapipes: IterPipe[Any], fill_value: Any = None) -> IterPipe[Any]:
        """Give tuples with an item of each source, until the longest ends."""

    def zip_with_iter(
        self,
        ref_datapipe: IterPipe[Any],
        key_fn: Callable[[Any], Any],
        ref_key_fn: Callable[[Any], Any] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> IterPipe[Any]:
        """Join each item with the one of another pipe that has the same key."""

    def zip_with_map(
        self,
        map_datapipe: MapPipe[Any],
        key_fn: Callable[[Any], Any],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> IterPipe[Any]:
        """Join each item with the one that a map-style pipe has for its key."""

class MapMethods:
    """What can follow the dot of a map-style pipe."""

    def batch(self, batch_size: int, drop_last: bool = False, wrapper_class: type[Any] = DataChunk) -> MapPipe[Any]:
        """Put so many items in a row into a list."""

    def concat(self, *datapipes: MapPipe[Any]) -> MapPipe[Any]:
        """Put pipes one behind another: the first index of a pipe follows the last one of the pipe before."""

    def in_memory_cache(self) -> MapPipe[Any]:
        """Keep each item that was asked for, and give the same object again."""

    def map(self, fn: Callable[[Any], Any] = same) -> MapPipe[Any]:
        """Apply a function to an item when it is asked for."""

    def shuffle(self, *, indices: Sequence[Any] | None = None) -> IterPipe[Any]:
        """Give all items of a map-style pipe in a random order: an iterable pipe, as documented."""

    def to_iter_datapipe(self, indices: Sequence[Any] | None = None) -> IterPipe[Any]:
        """Give the items of a map-style pipe, one after another."""

    def unzip(self, sequence_length: int, columns_to_skip: Sequence[int] | None = None) -> list[MapPipe[Any]]:
        """Make a pipe of each column."""

    def zip(self, *datapipes: MapPipe[Any]) -> MapPipe[Any]:
        """Put the items of several pipes with the same index into a tuple."""

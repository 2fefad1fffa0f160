"""`DistributeFilesDataset`: files over sub-epochs and ranks, each sub-epoch a dataset of its own, opened ahead of time.

The trainer decides which files a sub-epoch has (`share.py`) and cuts it into ranges of positions; workers,
which persist over epochs, open the sub-datasets (`shelf.py`) and read. Invariant: what a sub-epoch delivers
is the stream of the sub-dataset that the user's function describes for its files, in its order, whichever worker reads
it and whatever was opened before.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Literal, NoReturn

from headrace.engine import EngineOptions, EngineReport, Executor
from headrace.errors import ConfigError
from headrace.files.lists.file_list import Files, read_file_list
from headrace.files.lists.tree import FileTree, tree_leaves
from headrace.ranks import Ranks
from headrace.sources.formats import files_in, without_side_files
from headrace.specs import DataSpec

from ..checks import check_flag, check_key
from ..corpus import Corpus
from ..digests import digest_text, recipe_text
from ..orders import Orders
from ..workers import DatasetWorkers
from ..wrap.blockwise import BlocksAhead, BlockwiseDataset, ReadBlock
from .share import FileShare, ShareOptions
from .shelf import check_cache_options, opened_in_place
from .stream import StreamOptions, SubEpochStream
from .sub_dataset import GetSubEpochDataset, SubEpochLayout, cached_files_of, cannot_share, read_in_place

# Options of every dataset that look at sequences before they are read: they are for the sub-dataset.
_OF_SUB_DATASET = ("seq_list_filter_file", "seq_order_seq_lens_file", "unique_seq_tags")


class FilesCorpus(Corpus):
    """A list of files, of which each sub-epoch reads some. It has no order of sequences: a dataset reads it.

    Args:
        name: See `Corpus`.
        orders: Likewise.
        share: Which files each sub-epoch has.
        options: How sequences come from workers.
        window: See `Dataset`.

    Attributes:
        learnt: What sequences are like, if that was learnt.
        reading: The workers.
    """

    learnt: SubEpochLayout | None = None

    def __init__(self, name: str, orders: Orders, share: FileShare, options: StreamOptions, window: int) -> None:
        super().__init__(name, orders)
        self._share, self._options, self._window = share, options, window
        self.reading = SubEpochStream(options)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "reading": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, reading=SubEpochStream(state["_options"]))

    def apart(self) -> FilesCorpus:
        """Return this corpus with workers of its own."""
        made = super().apart()
        assert isinstance(made, FilesCorpus)
        made._share, made.reading = copy.copy(self._share), SubEpochStream(self._options)
        return made

    @property
    def share(self) -> FileShare:
        """Which files each sub-epoch has, by the options of the order."""
        self._share.use(self.orders.recipe)
        return self._share

    @property
    def specs(self) -> Mapping[str, DataSpec]:  # type: ignore[override]
        """Layout, as soon as it was learnt; joined frames are others than those of the files."""
        specs = {} if self.learnt is None else self.learnt.specs
        return {key: spec for key, spec in specs.items() if key != "data" or self._window == 1}

    def layout(self) -> None:
        """Not known here: the dataset may have to read to tell it."""

    def knows_order(self) -> bool:
        """No."""
        return False

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out."""
        return self._options.skips

    @property
    def workers(self) -> DatasetWorkers:
        """Those that share a sub-epoch: what they deliver depends on them."""
        options, report = self._options, self.reading.report
        num_workers, ahead = options.num_workers, options.buffer_size
        return DatasetWorkers(self.kind, num_workers, is_inline=options.is_inline, buffer_size=ahead, report=report)

    @property
    def shard(self) -> tuple[int, int]:
        """Into how many shards the files are divided, and which of them it is."""
        return self.share.shards

    @property
    def sharded_by(self) -> str:
        """The option by which it is one of several shards, for messages."""
        return f"distrib_shard_files=True ({self.shard[0]} shards)"

    def digest_text(self) -> str:
        """Return a digest of the names of all files."""
        return digest_text(f"files {self.share.names_text(self.share.trees)}")

    def order_text(self, epoch: int) -> str:
        """Return a text of the files of a sub-epoch, and of the dataset that is made of them."""
        share = self.share
        window = [f"window {self._window}"] if self._window > 1 else []
        files = f"files {share.names_text(share.trees_of(epoch, None))}; {share.config_text(epoch)}"
        return "; ".join([recipe_text(self.orders.recipe, epoch), files, *window, *self.reading_texts()])

    def reading_text(self, epoch: int) -> str:
        """Return all of `order_text`: each sub-epoch has files of its own."""
        return self.order_text(epoch)


class DistributeFilesDataset(BlockwiseDataset):
    """A corpus of many files, of which each sub-epoch reads some.

    In each full epoch the files are distributed over `partition_epoch` sub-epochs, and over ranks, so that each file is
    read exactly once and all parts have about the same number of bytes. A function of yours says what dataset the files
    of a sub-epoch make. Workers open the next sub-epochs while the current one is read.

    Args:
        files: The files, in any form that `read_file_list` takes: a list of names, URLs, patterns, folders, or tuples,
            lists and dicts of files that belong together; a pattern or a folder; a `.txt`, `.json` or `.py` list file;
            a function. Files that are read with others of the list, as an `.idx` is with its `.bin`, are left out.
        get_sub_epoch_dataset: Called in this process with the files of a sub-epoch, entries of the list as they are.
            Returns the config of a dataset (a dict, in which `CachedFile(name)` stands for a local copy), or a dataset,
            which keeps its own options.
        preload_next_n_sub_epochs: How many coming sub-epochs are fetched and opened in the background. Default 1, and 0
            where the work is done in this process.
        buffer_size: How many sequences a worker may be ahead; by default as many as make a few tickets of some MB.
            (RETURNN: 1.) The stream does not depend on it.
        distrib_shard_files: Divide the files among the ranks of a distributed training, see `find_ranks`. The same code
            runs with one process.
        sharding_fix: `None`, `True`: a rank reads all sequences of its files. `False`: the legacy behaviour: the
            sub-dataset is divided among the ranks once more, and most data are never read, as a warning says.
        use_worker_proc: `False` is the same as `executor="inline"`.
        balance: "in_order" is RETURNN's distribution, "largest_first" an evener one, see `FilePlan`.
        num_canonical_shards: Distribute over this many shards, whatever the number of ranks, see `FilePlan`.
        remainder: "drop": after `count_files`, each sub-epoch is cut to that of the rank with the fewest sequences, so
            that all ranks have the same number. Without it nothing is cut here: as in RETURNN, the training loop drops
            the rest when one rank ends. "keep": never cut.
        num_workers: How many workers share a sub-epoch; 0 reads in this process. More than one need a sub-dataset that
            gives any sequence at once, see `Dataset.supports_jumps`.
        rank: This rank; default: detected.
        world_size: The number of ranks, likewise.
        executor: "process", "thread" or "inline", or an `Executor`, which no other loader uses.
        engine_options: What to do about errors, deaths and stalls, see `EngineOptions`; how far a worker may be ahead
            is said by `buffer_size`.
        file_cache: Options of `FileCache`, as a dict; default: those of the environment.
        **kwargs: See `Dataset`. `partition_epoch` is the number of sub-epochs; `seq_ordering` is "default" (the order
            of the list) or "random" (shuffled for each full epoch).

    Raises:
        ConfigError: An option is wrong, or there are fewer files than sub-epochs.
        SourceError: A list file cannot be read.
    """

    supports_jumps = True
    has_own_workers = True
    distributes_files = True
    _layout: SubEpochLayout | None = None
    _is_undeclared = False  # whether the sub-dataset says nothing of its layout: sequences show it
    _options_inside: Sequence[str] = ()  # those of the sub-dataset that count for the batches of the epoch API only

    def __init__(
        self,
        *,
        files: Files,
        get_sub_epoch_dataset: GetSubEpochDataset,
        preload_next_n_sub_epochs: int | None = None,
        buffer_size: int | None = None,
        distrib_shard_files: bool = False,
        sharding_fix: bool | None = None,
        use_worker_proc: bool = True,
        balance: Literal["in_order", "largest_first"] = "in_order",
        num_canonical_shards: int | None = None,
        remainder: Literal["drop", "keep"] = "drop",
        num_workers: int = 1,
        rank: int | None = None,
        world_size: int | None = None,
        executor: str | Executor = "process",
        engine_options: EngineOptions | None = None,
        file_cache: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = [name for name in _OF_SUB_DATASET if kwargs.get(name)] + ["repeat_epoch"] * (self.repeat_epoch > 1)
        if given:
            raise ConfigError(
                f"{type(self).__name__} has no {given[0]}: it knows files, and no sequences",
                where=f"dataset {self.name!r}",
                fix="give it to the sub dataset, in the dict that get_sub_epoch_dataset returns",
            )
        self._stream_options = StreamOptions(
            num_workers=num_workers,
            executor=executor if check_flag("use_worker_proc", use_worker_proc) else "inline",
            buffer_size=buffer_size,
            engine=engine_options or EngineOptions(),
            cache=check_cache_options(file_cache),
        )
        if preload_next_n_sub_epochs is None:
            preload_next_n_sub_epochs = 0 if self._stream_options.is_inline else 1
        share_options = ShareOptions(
            get_sub_epoch_dataset=get_sub_epoch_dataset,
            shards_files=distrib_shard_files,
            rank=rank,
            world_size=world_size,
            shards_twice=sharding_fix is not None and not check_flag("sharding_fix", sharding_fix),
            balance=balance,
            num_canonical_shards=num_canonical_shards,
            num_preloaded=preload_next_n_sub_epochs,
            remainder=remainder,
        )
        share = FileShare(_corpus_files(files), share_options, self.name)
        share.use(self._orders.recipe)
        self._set_corpus(FilesCorpus(self.name, self._orders, share, self._stream_options, self.window))

    def _reset(self) -> None:
        super()._reset()
        self._limit: int | None = None
        self._num_in_files = 0

    @property
    def _files(self) -> FilesCorpus:
        corpus = self._read
        assert isinstance(corpus, FilesCorpus)
        return corpus

    @property
    def _share(self) -> FileShare:
        return self._files.share

    @property
    def _stream(self) -> SubEpochStream:
        return self._files.reading

    # --- files and ranks ---

    @property
    def files(self) -> list[FileTree]:
        """The file list, patterns expanded."""
        return self._share.trees

    @property
    def ranks(self) -> Ranks | None:
        """The rank that shares the files, and its origin; `None` before the first epoch, or if ranks do not share."""
        return self._share.ranks

    @property
    def num_shards(self) -> int:
        """Into how many shards the files are divided."""
        return self._share.shards[0]

    @property
    def shard_index(self) -> int:
        """Which of the shards this is."""
        return self._share.shards[1]

    def supports_sharding(self) -> bool:
        """Yes, by files."""
        return True

    def get_files(self, epoch: int, rank: int | None = None) -> list[FileTree]:
        """Return the files of a sub-epoch, in order, of this or another rank. Takes the sizes of all files at first."""
        return self._share.trees_of(epoch, rank)

    def num_seqs_of(self, epoch: int, rank: int | None = None) -> int | None:
        """Return how many sequences a rank delivers in a sub-epoch, or `None` if that is not known.

        It is known for all of them after `count_files`; without it, for sub-epochs of this rank whose files were read
        together before.

        Args:
            epoch: The sub-epoch.
            rank: Which rank; default this one.
        """
        return self._share.num_seqs_of(epoch, rank)

    def count_files(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Count the sequences of each entry of the file list, by opening a sub-dataset of it alone in a worker.

        Then `num_seqs_of` knows all numbers, `get_total_num_seqs` the total, and `remainder="drop"` cuts. Every rank
        must call it, or none. Costs about as much as opening each file; a cached file is read where it is, and fetched
        only if that is not possible.

        Args:
            progress: Called with (entries counted, all entries).

        Raises:
            ConfigError: The sub-dataset does not know its number of sequences.
        """
        entries = range(len(self.files))
        counts = []
        self._opened = None  # the workers leave it for the questions
        for answer in self._stream.do(
            methodcaller("count", self._share.spec_of_entry(entry), tree_leaves(self.files[entry])) for entry in entries
        ):
            counts.append(answer)
            if progress is not None:
                progress(len(counts), len(entries))
        self._share.take_counts(counts)

    # --- what is known without reading ---

    def _batch_options(self) -> list[str]:
        """Return those of the dataset that the layout was learnt from as well."""
        return [*super()._batch_options(), *self._options_inside]

    # --- what sequences are like ---

    def initialize(self) -> None:
        """Get ready to read: learn the layout from the first entry of the file list, read in place. Starts no process.

        Where its files can only be read from the cache, nothing is fetched: the layout is learnt with the first
        sub-epoch, whose files are needed anyway; or, if somebody asks before, from the first entry.
        """
        if self._layout is None:
            self._learn_layout(may_fetch=False)
        super().initialize()

    def _set_layout(self, layout: SubEpochLayout | None) -> None:
        self._layout = self._files.learnt = layout
        self._is_undeclared = layout is None

    def _learn_layout(self, *, may_fetch: bool) -> None:
        """Open the first entry of the file list in this process, to see what its sequences are like."""
        spec = self._share.spec_of_entry(0)
        if cached_files_of(read_in_place(spec.dataset)) and not may_fetch:
            return
        with opened_in_place(spec.dataset, self._stream_options.cache) as dataset:
            num_workers = self._stream_options.num_workers
            if num_workers > 1 and not dataset.supports_jumps:
                raise cannot_share(dataset, num_workers, f"dataset {self.name!r}")
            self._options_inside = dataset.get_corpus().batch_options
            self._set_layout(SubEpochLayout.of(dataset.get_corpus(), f"entry 0 of the file list, {spec.files}"))

    def _known_layout(self) -> SubEpochLayout | None:
        """Return the layout, learnt now if need be; `None` if only sequences show it."""
        if self._layout is None and not self._is_undeclared:
            self._take_first_block()
            if self._layout is None and not self._is_undeclared:
                self._learn_layout(may_fetch=True)
        return self._layout

    @property
    def num_inputs(self) -> int:  # type: ignore[override] # an attribute elsewhere; here it may have to be learnt
        """Size of a frame of "data"; 0 if there is no such key."""
        layout = self._known_layout()
        return 0 if layout is None or "data" not in layout.keys else layout.keys["data"].num_outputs[0]

    @property
    def num_outputs(self) -> dict[str, tuple[int, int]] | None:  # type: ignore[override]
        """Data key -> (dim, ndim), as the sub-dataset says."""
        layout = self._known_layout()
        return None if layout is None else {key: spec.num_outputs for key, spec in layout.keys.items()}

    @property
    def labels(self) -> dict[str, Sequence[str]]:
        """Data key -> names of the classes, as the first entry of the file list says."""
        layout = self._known_layout()
        return {} if layout is None else dict(layout.labels)

    @labels.setter
    def labels(self, value: dict[str, Sequence[str]]) -> None:
        if value:
            raise ConfigError(f"the labels of a {type(self).__name__} are those of its files")

    def _layout_of(self, key: str) -> DataSpec | None:
        layout = self._known_layout()
        if layout is None:
            return None
        check_key(key, layout.keys, f"dataset {self.name!r}")
        return layout.keys[key]

    def get_data_keys(self) -> list[str]:
        """Return the data keys."""
        layout = self._known_layout()
        return super().get_data_keys() if layout is None else list(layout.keys)

    # --- epochs ---

    @property
    def num_workers(self) -> int:
        """How many workers share a sub-epoch; 0: this process reads."""
        return self._stream_options.num_workers

    @property
    def buffer_size(self) -> int | None:
        """How many sequences a worker may read ahead; `None`: as many as fill some tickets of a few MB."""
        return self._stream_options.buffer_size

    @property
    def engine_report(self) -> EngineReport | None:
        """Statistics: where time was spent, and what was skipped or restarted; `None` before workers were started."""
        return self._stream.report

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a sub-epoch: the workers begin with it at once, and with opening the next ones.

        Raises:
            ConfigError: An explicit order was given; fewer files than bins; or `get_sub_epoch_dataset` returned no
                dataset.
            SourceError: A file is missing.
        """
        if seq_list is not None or seq_order is not None:
            raise ConfigError(
                f"{type(self).__name__} does not support seq_list and seq_order",
                where=f"dataset {self.name!r}",
                fix="give them to the sub dataset",
            )
        super().init_seq_order(epoch)
        self._stream.forget_plan()
        self._limit = None
        if self._epoch is not None:
            try:
                self._share.settle_ranks()
                self._limit = self._share.limit_of(self._sub_epoch)
                self._opened = self._open_at(0)
            except BaseException:
                self.finish_epoch()  # what could be read otherwise?
                raise
        return True

    @property
    def _sub_epoch(self) -> int:
        return max(int(self.epoch), 1)  # epoch 0 counts as epoch 1

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` also the workers, with all that they have open."""
        super().finish_epoch(free_resources=free_resources)
        self._stream.stop()
        if free_resources:
            self._stream.close()

    # --- reading ---

    def _open_blocks(self, position: int) -> tuple[int, Iterator[ReadBlock]]:
        """Let the workers begin at a position."""
        start = 0 if self._stream_options.skips else position
        self._begin()
        return start, self._stream.blocks(start, self._learn)

    def _begin(self) -> None:
        """Make the plan of the sub-epoch, unless there is one."""
        self._stream.begin(lambda: self._share.plan_of(self._sub_epoch, self._layout))

    def _learn(self, num_in_files: int | None, layout: SubEpochLayout | None) -> None:
        """Learn from the workers how many sequences the sub-epoch has, and what they are like."""
        if num_in_files is not None and not self._stream_options.skips:
            self._take_number(num_in_files)
        if self._layout is None:
            self._set_layout(layout)

    def _goes_on(self, opened: BlocksAhead, seq_idx: int) -> bool:
        return self._stream_options.skips or seq_idx - opened.position < self._stream.look_ahead

    def _take_number(self, num_in_files: int) -> None:
        """Take how many sequences the sub-epoch has, as one of the workers says."""
        if self._num_seqs is None:
            self._share.learn(num_in_files)
            self._num_seqs = num_in_files if self._limit is None else min(num_in_files, self._limit)
            self._num_in_files = num_in_files
        elif num_in_files != self._num_in_files:
            raise ConfigError(
                f"workers have opened sub-epoch {self._sub_epoch} with {self._num_in_files} and with {num_in_files} "
                "sequences",
                where=f"dataset {self.name!r}",
                fix="let the sub dataset be the same each time that it is made: no unseeded draws, no files that grow",
            )

    def _take_first_block(self) -> None:
        """Take what the workers say first, if nothing was taken yet: the sequences in it are kept for the reader."""
        if self._epoch is not None and self._num_seqs is None and not self._current[1] and not self._next_seq_idx:
            self._advance(0)

    def _collect_next(self, end: int) -> bool:
        if self._limit is not None and self._next_seq_idx >= self._limit:
            return False
        return super()._collect_next(end)

    @property
    def _loadable_stop(self) -> int:
        stop = super()._loadable_stop
        return stop if self._limit is None else min(stop, self._limit)

    # --- how much there is ---

    @property
    def num_seqs(self) -> int:
        """Number of sequences of the current sub-epoch; waits until it is open."""
        self._take_first_block()
        return super().num_seqs

    def _has_seq(self, seq_idx: int) -> bool:
        self._take_first_block()
        return super()._has_seq(seq_idx)

    def have_seqs(self) -> bool:
        """Whether there are files: yes."""
        return bool(self.files)

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of all files. Only where one sub-epoch has them all; a worker is asked."""
        tags: Sequence[str] = self._ask_about_all("get_all_tags")
        return tags

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of all files: after `count_files`, or where one sub-epoch has them all."""
        total = self._share.total_num_seqs
        if total is not None:
            return total
        if fast:
            self._not_known("get_total_num_seqs(fast=True)")
        return int(self._ask_about_all("get_total_num_seqs"))

    def _ask_about_all(self, method: str) -> Any:
        """Ask the dataset of a sub-epoch that has all files."""
        if self.partition_epoch > 1 or self.num_shards > 1:
            self._not_known(method)
        if self._epoch is None:
            self._stream.forget_plan()
        self._begin()
        self._opened = None  # the workers leave it for the question
        return self._stream.ask(method)

    def _not_known(self, what: str) -> NoReturn:
        self._not_offered(f"{what} where a sub-epoch has only a part of the files")


def _corpus_files(files: Files) -> list[FileTree]:
    """Return the entries of a file list; a folder stands for the files in it, and what lies beside others is left out.

    A sub-epoch with an `.idx`, and one with its `.bin`, would deliver the same sequences.
    """
    trees = read_file_list(files, files_in)
    names = [os.fspath(tree) for tree in trees if isinstance(tree, str | os.PathLike)]
    left_out = set(names).difference(without_side_files(names))
    return [tree for tree in trees if not isinstance(tree, str | os.PathLike) or os.fspath(tree) not in left_out]

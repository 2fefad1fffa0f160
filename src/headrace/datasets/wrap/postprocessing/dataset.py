"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

What comes out is a function of the inner dataset, the function, the seed and the epoch. A function of one sequence
leaves order, tags and corpus indices as they are, so whatever can be asked of the inner dataset can be asked here, and
workers change nothing. A function over a stream makes another stream. Functions are called in `calls.py`; what they get
is read in `reading.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.engine import EngineOptions, Skipping
from headrace.errors import ConfigError, SourceError
from headrace.order import Order, OrderReport, RangeOrder, derive_order_seed, occurrences
from headrace.specs import DataSpec

from ...base import Dataset, Owned
from ...cached2 import CachedDataset2
from ...checks import check_count, check_flag
from ...configs import DatasetConfig
from ...corpus import Corpus, LengthsOf
from ...delegating import InnerCorpus
from ...parts import open_part
from ...reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from ...seq import DatasetSeq
from ...workers import DatasetWorkers
from ..multi_proc import MultiProcDataset
from .calls import FunctionLayout, MapSeq, MapStream
from .functions import META_KEYS, draws, parse_function
from .reading import FunctionStream, MapReader, gives_all_in_order, without_workers

_NOTHING = ReadRequest(None, RangeOrder(range(0)))
_SEEDS = ("fixed_random_seed", "random_seed_offset")
_OF_INNER = (  # options that say which sequences there are, and in which order
    "seq_ordering",
    "partition_epoch",
    "repeat_epoch",
    "seq_list_filter_file",
    "unique_seq_tags",
    "seq_order_seq_lens_file",
)
_HARMLESS = (None, 0, 1, False, "default")


class PostprocessingDataset(InnerCorpus, CachedDataset2):
    """A dataset whose sequences a function changes.

    Exactly one of `map_seq` and `map_seq_stream` is given: a function, "package.module:function", or a list of these,
    which are called in a row. A sequence is a dict, data key -> array, with the entries "seq_tag" (str), "seq_idx"
    (int) and, where it is known, "complete_frac" (float); a function may leave these out of what it returns. Of
    the keyword arguments `epoch`, `seq_idx` (`map_seq` only) and `rng` a function gets those that it takes, or all if
    it has `**kwargs`.

    `map_seq(data, *, rng, ...)` returns the sequence changed. Order, tags, corpus indices and number of sequences are
    those of the inner dataset. `rng` is a `numpy.random.RandomState` keyed by (seed, epoch, sequence), so what comes
    out does not depend on which process calls the function or when. Workers read and change sequences, as those of
    `MultiProcDataset`.

    `map_seq_stream(iterator, *, rng, ...)` yields sequences: fewer, more, or in another order. `rng` is one
    `RandomState` for the epoch, with RETURNN's seed. With W workers the function runs W times, over every W-th
    sequence, and what they yield is taken in turn; so the stream depends on W, and is the same each time for one W.

    Args:
        dataset: Config of the inner dataset. It gives the order, the sub-epochs and the shards.
        map_seq: See above.
        map_seq_stream: See above.
        map_outputs: Data key -> layout, such as `{"data": {"dim": 42}}` or `{"data": {"shape": (None, 42), "dtype":
            "float32"}}`: all data keys that come out; others that a function makes are left out. `None`: those of the
            inner dataset, and no others may be made.
        map_seq_stream_preserves_num_seqs: Whether as many sequences come out as go in. `None`: what the function says
            by an attribute `preserves_num_seqs`.
        buf_size: How many sequences a worker may be ahead. Small sequences want 100 and more.
        num_workers: Number of worker processes; 0 calls the function here.
        map_seq_preserves_lengths: Whether `map_seq` leaves the number of frames of each data key as it is, so that
            lengths are known without reading.
        engine_options: What to do about errors, deaths and stalls in workers, see `EngineOptions`.
        **kwargs: See `Dataset`; what says an order is for the inner dataset.

    Raises:
        ConfigError: An option is wrong.
        TransformError: While reading: what a function returned is not what it should be, or claims something that is
            not so.
    """

    supports_window = False
    content_options = ("map_outputs",)

    def __init__(
        self,
        *,
        dataset: DatasetConfig,
        map_seq: Any = None,
        map_seq_stream: Any = None,
        map_outputs: Mapping[str, Any] | None = None,
        map_seq_stream_preserves_num_seqs: bool | None = None,
        buf_size: int = 1,
        num_workers: int = 0,
        map_seq_preserves_lengths: bool = False,
        engine_options: EngineOptions | None = None,
        **kwargs: Any,
    ) -> None:
        for name in _OF_INNER:
            if kwargs.get(name) not in _HARMLESS:
                raise ConfigError(
                    f"{name}={kwargs[name]!r} of a PostprocessingDataset: which sequences there are, and in which "
                    "order, is said by the inner dataset",
                    fix=f'give {name} in the config "dataset"; a stream is sorted by LaplaceOrdering',
                )
        if (map_seq is None) == (map_seq_stream is None):
            given = "both are" if map_seq is not None else "none is"
            raise ConfigError(f"one of map_seq and map_seq_stream is needed, {given} given")
        self._is_of_seq = map_seq is not None
        kind, function = ("map_seq", map_seq) if self._is_of_seq else ("map_seq_stream", map_seq_stream)
        self._function = parse_function(kind, function)
        self._num_workers = check_count("num_workers", num_workers)
        self._buf_size = check_count("buf_size", buf_size, minimum=1)
        self._says_lengths = check_flag("map_seq_preserves_lengths", map_seq_preserves_lengths)
        self._engine_options = engine_options
        keeps_count = map_seq_stream_preserves_num_seqs
        if self._is_of_seq and keeps_count is not None:
            raise ConfigError("map_seq_stream_preserves_num_seqs is for map_seq_stream", fix="leave it out")
        if self._says_lengths and not self._is_of_seq:
            raise ConfigError("map_seq_preserves_lengths is for map_seq", fix="leave it out")
        if self._skips and not self._is_of_seq:
            raise ConfigError(
                "on_error=Skipping(...) with map_seq_stream: a stream cannot go on behind an error",
                fix="leave it out, or catch errors in the function",
            )
        if keeps_count is None:
            keeps_count = self._is_of_seq or getattr(self._function, "preserves_num_seqs", False) is True
        self._keeps_count = check_flag("map_seq_stream_preserves_num_seqs", keeps_count)
        super().__init__(**kwargs)
        self._inner = open_part(dataset, parent_dataset=self, owner=self)
        if self.num_shards > 1 and self._inner.num_shards == 1:  # a dataset that was made before, or that has others
            self._inner.set_sharding(self.num_shards, self.shard_index)
        self._map_outputs = map_outputs
        self._take_layout()
        self._follow_order()
        self._is_indexed = self._is_of_seq and gives_all_in_order(self._inner)
        self._keeps_lengths = self._says_lengths and self._is_indexed
        self._draws = self._is_of_seq and draws(self._function)
        if self._is_indexed:
            self._inner.foreign.answer_alone()
        self._wanted = _NOTHING  # the current order
        self._reader: MapReader | None = None
        self._pool: MultiProcDataset | None = None  # reads and changes sequences of an order
        self._is_part = False  # whether the current order is a part of an epoch
        self._stream: FunctionStream | None = None
        self._is_stale = False  # whether workers were told what is no longer so
        self._knows_positions = True
        if type(self).__init__ is PostprocessingDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = ((), {**self._given[1], kind: self._function, "dataset": Owned(self._inner)})

    @property
    def _skips(self) -> bool:
        return self._engine_options is not None and isinstance(self._engine_options.on_error, Skipping)

    @property
    def _seeds(self) -> dict[str, Any]:
        """The options that are its own among those that make the order of other datasets."""
        return {name: getattr(self, name) for name in _SEEDS}

    def _follow_order(self) -> None:
        """Take over the options that make the order, which are those of the inner dataset; seeds are its own."""
        self._recipe = dataclasses.replace(self._inner.order_recipe, **self._seeds)
        self._seq_ordering = self._inner.seq_ordering

    def _change_recipe(self, **changes: Any) -> None:
        own = {name: changes.pop(name) for name in _SEEDS if name in changes}
        self._recipe = dataclasses.replace(self._recipe, **own)
        super()._change_recipe(**changes)
        self._is_stale = True

    # --- layout ---

    def _take_layout(self) -> None:
        """Take the layout of what comes out; class labels are those of the inner dataset, where they fit."""
        inner, self._layout = self._inner, FunctionLayout.of(self._inner)
        taken = sorted(set(self._layout.specs or ()) & set(META_KEYS))
        if taken:
            raise SourceError(
                f"the inner dataset has the data keys {taken}, and the function gets something else under these names",
                where=f"dataset {inner.name!r}",
                fix="rename them, for example by the data_map of a MetaDataset",
            )
        if self._map_outputs is not None:
            self._layout = FunctionLayout.parse(self._map_outputs)
        specs = self._layout.specs
        if specs is None:
            return
        self.num_outputs = {key: spec.num_outputs for key, spec in specs.items()}
        self.num_inputs = self.num_outputs["data"][0] if "data" in self.num_outputs else 0
        self.labels = {
            key: labels
            for key, labels in inner.labels.items()
            if key in specs and key in (inner.num_outputs or {}) and inner.get_data_dim(key) == specs[key].dim
        }

    def _layout_of(self, key: str) -> DataSpec | None:
        return (self._layout.specs or {}).get(key)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        if key in (self._layout.specs or ()) and not self._layout.knows_dtypes and self._is_loaded(self._load_start):
            return self._first_seq().get_data(key).dtype.name
        return super().get_data_dtype(key)

    # --- what is known without reading ---

    @property
    def inner(self) -> Dataset:
        """The inner dataset."""
        return self._inner

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the inner dataset knows, as far as the function leaves it as it is.

        Order and tags are those of the inner dataset if any sequence can be made without those before it.
        """
        inner, layout = super().get_corpus(epoch), self._layout

        def lengths(key: str, may_cost: bool) -> LengthsOf | None:
            is_kept = self._keeps_lengths and key in self._inner.get_data_keys()
            return inner.lengths(key, may_cost) if is_kept else None

        corpus = dataclasses.replace(
            inner,
            knows_order=lambda: self._is_indexed,
            specs=layout.specs if layout.specs is not None and layout.knows_dtypes else {},
            knows_dtypes=layout.knows_dtypes,
            lengths=lengths,
            draws_by_occurrence=inner.draws_by_occurrence or self._draws,
        )
        return corpus if self._is_indexed else dataclasses.replace(corpus.without_index(), size=lambda: None)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        if not self._is_indexed:
            self._not_offered("the order of an epoch")
        return self._inner.get_epoch_order(epoch, given, counts=counts or self._draws)

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order, and what the function depends on."""
        return "; ".join([super().order_text(epoch), *self._reading_details()])

    def _reading_details(self) -> list[str]:
        in_turn = [] if self._is_of_seq else [f"{self._num_workers} workers in turn"]
        return [*super()._reading_details(), *in_turn]

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the options of speed; the result of a stream function depends on the workers."""
        idle = super().idle_options(options) | {"buf_size"}
        return idle if options.get("map_seq_stream") is None else idle - {"num_workers"}

    def get_workers(self) -> DatasetWorkers | None:
        """Return its workers; `map_seq` can be called for any sequence, so each reader calls it itself."""
        is_same = self._is_pooled
        if not (self._num_workers or is_same):
            return None
        read, num_workers = (self if is_same else None), self._num_workers
        told = self._engine_options
        return DatasetWorkers(
            type(self).__name__, num_workers, read, read, is_same, is_inline=num_workers == 0, engine_options=told
        )

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out; not where this is a part of a dataset that has workers."""
        return self._skips and not self.seeds_by_tag

    def forget_positions(self) -> None:
        """See `Dataset.forget_positions`."""
        super().forget_positions()
        self._knows_positions, self._is_stale = False, True

    @property
    def supports_jumps(self) -> bool:
        """Whether a reader that jumps ahead need not read the sequences in between."""
        return self._is_indexed and super().supports_jumps

    def get_random_seed_for_epoch(self, epoch: int | None, num_epochs_fixed: int = 1) -> int:
        """Return the seed of an epoch by RETURNN's rule, of this dataset's own options: sub-epochs are epochs here."""
        return derive_order_seed(epoch or 1, num_epochs=num_epochs_fixed, **self._seeds)

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter; `map_seq` only."""
        self._check_maps_each()
        return self._inner.get_corpus_tags()

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, as the inner dataset does; `map_seq` only."""
        self._check_maps_each()
        return super().get_all_tags()

    def _check_maps_each(self) -> None:
        if not self._is_of_seq:
            self._not_offered("get_all_tags with map_seq_stream")

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus; not if `map_seq_stream` may change it."""
        if not self._keeps_count:
            self._not_offered("get_total_num_seqs with a map_seq_stream that may change it")
        return super().get_total_num_seqs(fast=fast)

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`.

        Raises:
            ConfigError: `seq_list` or `seq_order` with `map_seq_stream`, whose sequences are not those of the corpus.
        """
        given = GivenOrder.of(seq_list, seq_order)
        if given is not None and not self._is_of_seq:
            raise ConfigError(
                "a dataset with map_seq_stream takes no seq_list or seq_order: it makes its own sequences",
                where=f"dataset {self.name!r}",
                fix="give the order to the inner dataset, or use map_seq",
            )
        super().init_seq_order(epoch)
        self._stop()
        if epoch is None and given is None:
            self._inner.init_seq_order()
        elif self._is_indexed:
            if self._is_pooled:
                if self._pool is None:
                    self._pool = self._make_pool()
                self._pool.foreign.start_given(epoch, given)  # workers begin when something is read
            self._is_part = False
            order, counted = self._make_order(epoch, given, counts=False)
            first = 0 if self._knows_positions else None
            self._wanted = ReadRequest(self._epoch, order, counted, first, is_whole=given is None)
            self._num_seqs = None if self.skips_failed else len(order)
        else:
            self._inner.foreign.start_given(epoch, given)
            if self._keeps_count and not self.skips_failed:
                self._num_seqs = self._inner.known_num_seqs()
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences; this process reads them, whatever `num_workers` says."""
        if not self._is_indexed:
            return super().start_part(wanted)
        super().init_seq_order(wanted.epoch)
        self._stop()
        self._wanted, self._is_part = wanted, True
        self._num_seqs = self._first + len(wanted.order)
        return self._first

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        counted = self._wanted.occurrences
        return occurrences(self._wanted.order) if counted is None else counted

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch, of the inner dataset as well; with `free_resources` also the workers."""
        self._is_stale = self._is_stale or free_resources
        self._stop()
        super().finish_epoch(free_resources=free_resources)

    def seed_by_tag(self) -> None:
        """Key the generators of functions by tags, see `Dataset.seed_by_tag`; workers start anew."""
        super().seed_by_tag()
        self._is_stale = True

    def get_current_seq_order(self) -> Order:
        """Return the corpus indices of the current epoch, in order, as the inner dataset does; `map_seq` only."""
        if not self._is_indexed:
            self._not_offered("get_current_seq_order")
        return self._wanted.order

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe of the inner dataset leaves out or repeats."""
        return self._inner.order_report

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make the inner dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        super()._take_shard(num_shards, shard_index)
        self._is_stale = True

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known."""
        return self._is_indexed

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the corpus index of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx - self._first]

    # --- reading ---

    @property
    def _is_pooled(self) -> bool:
        """Whether workers read and change sequences by their corpus indices.

        Not where tags are the key of what is drawn: this dataset is then a part of another one, which has workers.
        """
        wants_engine = self._num_workers > 0 or self._engine_options is not None
        return wants_engine and self._is_indexed and not self.seeds_by_tag

    def _make_pool(self) -> MultiProcDataset:
        """Return this dataset without workers, in a `MultiProcDataset`."""
        config = {
            "class": PostprocessingDataset,
            "name": self.name,
            "dataset": without_workers(self._inner),
            "map_seq": self._function,
            "map_outputs": self._map_outputs,
            "map_seq_preserves_lengths": self._says_lengths,
            **self._seeds,
        }
        pool = MultiProcDataset(config, self._num_workers, self._buf_size, engine_options=self._engine_options)
        pool.initialize()
        return pool

    def _make_reader(self, inner: Dataset) -> MapReader:
        kept = self.get_data_keys() if self._keeps_lengths else None
        return MapReader(inner, self._make_map_seq(), by_tag=self.seeds_by_tag, kept=kept)

    def _new_reader(self) -> Reader:
        return self._make_reader(without_workers(self._inner)) if self._is_indexed else super()._new_reader()

    def _make_map_seq(self) -> MapSeq:
        keeps = {"keeps_lengths": self._says_lengths, "keeps_tags": self._is_indexed}
        return MapSeq(self._function, self._layout, self._seeds, **keeps)

    def _open_reader(self) -> MapReader:
        """Return the reader of the current order, begun now if it was not yet; workers that read it are not asked."""
        if self._reader is None:
            is_here = self._pool is not None or self._is_part
            self._reader = self._make_reader(without_workers(self._inner) if is_here else self._inner)
            self._reader.start(self._wanted, is_all=not self._is_part)
        return self._reader

    @property
    def _first(self) -> int:
        """Position of the first sequence of the current order."""
        return self._wanted.first or 0

    def _open_stream(self) -> FunctionStream:
        """Return the stream of the current epoch, begun now if it was not yet."""
        if self._stream is None:
            is_of_seq, keeps_count = self._is_of_seq, self._keeps_count
            function = self._make_map_seq() if is_of_seq else MapStream(self._function, self._layout, keeps_count)
            options = self._num_workers, self._buf_size, self._engine_options
            self._stream = FunctionStream(self._inner, function, *options)
        if not self._stream.is_open:
            epoch = int(self.epoch)
            num_seqs = None if self._is_of_seq else self._num_seqs
            self._stream.start(epoch, self.get_random_seed_for_epoch(epoch), num_seqs)
        return self._stream

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if not self._is_indexed:
            return self._open_stream().read(seq_idx)
        if self._pool is not None and not self._is_part:
            if not self._pool.is_less_than_num_seqs(seq_idx):
                return None
            self._pool.load_seqs(seq_idx, seq_idx + 1)
            return self._pool.get_seq(seq_idx)
        reader, number = self._open_reader(), seq_idx - self._first
        return reader.read(number) if 0 <= number < len(self._wanted.order) else None

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; a stream that ends at once is asked whether it should.

        Raises:
            TransformError: The stream should not end here.
        """
        is_less = super().is_less_than_num_seqs(seq_idx)
        if self._num_seqs == 0 and self._epoch is not None and not self._is_indexed:
            self._open_stream().check_end()
        return is_less

    def _stop(self) -> None:
        """End running work; and the workers, if their settings are out of date: they come back with the next epoch."""
        is_stale, self._is_stale = self._is_stale, False
        pool, stream = self._pool, self._stream
        self._wanted, self._reader = _NOTHING, None
        if is_stale:
            self._pool = self._stream = None
        if pool is not None:
            pool.finish_epoch(free_resources=is_stale)
        if stream is not None:
            stream.stop(free_resources=is_stale)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence, unless it was said that lengths stay."""
        if not self._keeps_lengths or self._is_loaded(seq_idx):
            return super().get_seq_length(seq_idx)
        return self._open_reader().num_frames(seq_idx - self._first)

"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

What comes out is a function of the inner dataset, the function, the seed and the epoch. A function of one sequence
leaves order, tags and corpus indices as they are, so whatever can be asked of the inner dataset can be asked here, and
workers change nothing. A function over a stream makes another stream. Calling is in `map_seq.py` and `map_stream.py`,
reading any sequence in `readers.py`, a whole stream in `streams.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.engine import EngineOptions
from headrace.errors import ConfigError
from headrace.order import Order, OrderReport, RangeOrder, derive_order_seed, occurrences

from ...base import Dataset, Owned
from ...configs import DatasetConfig
from ...corpus import Corpus
from ...delegating import InnerCorpus
from ...parts import open_part
from ...reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest
from ...seq import DatasetSeq
from ...workers import DatasetWorkers
from ..multi_proc import MultiProcDataset
from .inner import gives_all_in_order, without_workers
from .layout import LaidOut, check_keys, layout_of, parse_outputs
from .map_seq import MapSeq
from .map_stream import MapStream
from .options import FunctionOptions, check_inherited
from .readers import MapReader, OrderedSeqs, PoolReader, SeqReader
from .streams import EachOfStream, FunctionStream, WholeStream

_NOTHING = ReadRequest(None, RangeOrder(range(0)))
_SEEDS = ("fixed_random_seed", "random_seed_offset")


class PostprocessingDataset(LaidOut, InnerCorpus):
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
        check_inherited(kwargs)
        self._options = FunctionOptions(
            map_seq=map_seq,
            map_seq_stream=map_seq_stream,
            map_outputs=map_outputs,
            map_seq_stream_preserves_num_seqs=map_seq_stream_preserves_num_seqs,
            buf_size=buf_size,
            num_workers=num_workers,
            map_seq_preserves_lengths=map_seq_preserves_lengths,
            engine_options=engine_options,
        )
        super().__init__(**kwargs)
        self._own_seeds = {name: getattr(self, name) for name in _SEEDS}
        self._inner = open_part(dataset, parent_dataset=self, owner=self)
        if self.num_shards > 1 and self._inner.num_shards == 1:  # a dataset that was made before, or that has others
            self._inner.set_sharding(self.num_shards, self.shard_index)
        layout = layout_of(self._inner)
        check_keys(self._inner, layout)
        self._take_layout(layout if map_outputs is None else parse_outputs(map_outputs), self._inner)
        self._follow_order()
        self._is_indexed = self._options.map_seq is not None and gives_all_in_order(self._inner)
        if self._is_indexed:
            self._inner.answer_alone()
        self._wanted = _NOTHING  # the current order
        self._pool: MultiProcDataset | None = None
        self._length_reader: MapReader | None = None
        self._stream: FunctionStream | None = None
        self._reader: SeqReader | None = None
        self._is_stale = False  # whether workers were told what is no longer so
        self._knows_positions = True
        if type(self).__init__ is PostprocessingDataset.__init__:  # a copy may be made in another folder
            options = {**vars(self._options), **kwargs, **self._own_seeds}
            self._ctor_args = ((), {**options, "dataset": Owned(self._inner)})

    def _follow_order(self) -> None:
        """Take over the options that make the order, which are those of the inner dataset; seeds are our own."""
        self._recipe = dataclasses.replace(self._inner._recipe, **self._own_seeds)
        self._seq_ordering = self._inner.seq_ordering

    def _change_recipe(self, **changes: Any) -> None:
        self._own_seeds.update({name: value for name, value in changes.items() if name in _SEEDS})
        super()._change_recipe(**{name: value for name, value in changes.items() if name not in _SEEDS})
        self._is_stale = True

    # --- what is known without reading ---

    @property
    def inner(self) -> Dataset:
        """The inner dataset."""
        return self._inner

    def get_corpus(self, epoch: int | None = None) -> Corpus:
        """Return what the inner dataset knows, as far as the function leaves it as it is.

        Order and tags are those of the inner dataset if any sequence can be made without those before it.
        """
        inner = super().get_corpus(epoch)
        corpus = dataclasses.replace(
            inner,
            knows_order=lambda: self._is_indexed,
            specs=self._specs,
            knows_dtypes=self._knows_dtypes,
            lengths=lambda key, may_cost: inner.lengths(key, may_cost) if self._keeps_lengths_of(key) else None,
            draws_by_occurrence=inner.draws_by_occurrence or self._options.draws,
        )
        return corpus if self._is_indexed else dataclasses.replace(corpus.without_index(), size=lambda: None)

    def _make_order(self, epoch: int | None, given: GivenOrder | None, *, counts: bool) -> CountedOrder:
        if not self._is_indexed:
            self._not_offered("the order of an epoch")
        return self._inner.get_epoch_order(epoch, given, counts=counts or self._options.draws)

    @property
    def _keeps_lengths(self) -> bool:
        return self._options.map_seq_preserves_lengths and self._is_indexed

    def _keeps_lengths_of(self, data_key: str) -> bool:
        return self._keeps_lengths and data_key in self._inner.get_data_keys()

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order, and what the function depends on."""
        return "; ".join([super().order_text(epoch), *self._reading_details()])

    def _reading_details(self) -> list[str]:
        in_turn = [] if self._options.map_seq is not None else [f"{self._options.num_workers} workers in turn"]
        return [*super()._reading_details(), *in_turn]

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the options of speed; the result of a stream function depends on the workers."""
        idle = super().idle_options(options) | {"buf_size"}
        return idle if options.get("map_seq_stream") is None else idle - {"num_workers"}

    def get_workers(self) -> DatasetWorkers | None:
        """Return its workers; `map_seq` can be called for any sequence, so each reader calls it itself."""
        num_workers, is_same = self._options.num_workers, self._is_pooled()
        if not (num_workers or is_same):
            return None
        return DatasetWorkers(
            type(self).__name__,
            num_workers,
            self if is_same else None,
            self if is_same else None,
            is_same_without=is_same,
            is_inline=num_workers == 0,
            engine_options=self._options.engine_options,
        )

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out; not where this is a part of a dataset that has workers."""
        return self._options.skips and not self.seeds_by_tag

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
        return derive_order_seed(epoch or 1, num_epochs=num_epochs_fixed, **self._own_seeds)

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter; `map_seq` only."""
        self._check_maps_each()
        return self._inner.get_corpus_tags()

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, as the inner dataset does; `map_seq` only."""
        self._check_maps_each()
        return super().get_all_tags()

    def _check_maps_each(self) -> None:
        if self._options.map_seq is None:
            self._not_offered("get_all_tags with map_seq_stream")

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus; not if `map_seq_stream` may change it."""
        if not self._options.keeps_count:
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
        if given is not None and self._options.map_seq is None:
            raise ConfigError(
                "a dataset with map_seq_stream takes no seq_list or seq_order: it makes its own sequences",
                where=f"dataset {self.name!r}",
                fix="give the order to the inner dataset, or use map_seq",
            )
        super().init_seq_order(epoch)
        self._stop()
        if epoch is None and given is None:
            self._inner.init_seq_order()
            return True
        if self._is_indexed:
            if self._is_pooled():
                if self._pool is None:
                    self._pool = self._make_pool()
                self._pool.start_given(epoch, given)  # workers begin when something is read
            order, counted = self._make_order(epoch, given, counts=False)
            first = 0 if self._knows_positions else None
            self._wanted = ReadRequest(self._epoch, order, counted, first, is_whole=given is None)
            self._num_seqs = None if self.skips_failed else len(order)
            return True
        self._inner.start_given(epoch, given)
        if self._options.keeps_count and not self.skips_failed:
            self._num_seqs = self._inner.known_num_seqs()
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences; this process reads them, whatever `num_workers` says."""
        if not self._is_indexed:
            return super().start_part(wanted)
        super().init_seq_order(wanted.epoch)
        self._stop()
        first = wanted.first or 0
        self._wanted, self._num_seqs = wanted, first + len(wanted.order)
        reader = self._make_reader(without_workers(self._inner))
        reader.start(wanted)
        self._reader = OrderedSeqs(reader, len(wanted.order), first)
        return first

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
        return self.get_current_seq_order()[seq_idx]

    # --- reading ---

    def _is_pooled(self) -> bool:
        """Whether workers read and change sequences by their corpus indices.

        Not where tags are the key of what is drawn: this dataset is then a part of another one, which has workers.
        """
        return self._options.wants_engine and self._is_indexed and not self.seeds_by_tag

    def _make_pool(self) -> MultiProcDataset:
        """Return this dataset without workers, in a `MultiProcDataset`."""
        options = self._options
        config = {
            **vars(dataclasses.replace(options, num_workers=0, engine_options=None)),
            **self._own_seeds,
            "class": PostprocessingDataset,
            "name": self.name,
            "dataset": without_workers(self._inner),
        }
        pool = MultiProcDataset(config, options.num_workers, options.buf_size, engine_options=options.engine_options)
        pool.initialize()
        return pool

    def _make_reader(self, inner: Dataset) -> MapReader:
        keys = self.get_data_keys() if self._keeps_lengths else None
        draws, by_tag = self._options.draws, self.seeds_by_tag
        return MapReader(inner, self._make_map_seq(), draws=draws, by_tag=by_tag, keys=keys)

    def _new_reader(self) -> Reader:
        return self._make_reader(without_workers(self._inner)) if self._is_indexed else super()._new_reader()

    def _make_map_seq(self) -> MapSeq:
        return MapSeq(
            self._options.map_seq,
            self._layout,
            self._own_seeds["random_seed_offset"] or 0,
            self._own_seeds["fixed_random_seed"],
            self._options.map_seq_preserves_lengths,
            keeps_tags=self._is_indexed,
        )

    def _open_stream(self) -> FunctionStream:
        options = self._options
        if self._stream is None and options.map_seq is not None:
            self._stream = EachOfStream(self._inner, options, self._make_map_seq())
        elif self._stream is None:
            map_stream = MapStream(options.map_seq_stream, self._layout, options.keeps_count)
            self._stream = WholeStream(self._inner, options, map_stream)
        return self._stream

    def _open_reader(self) -> SeqReader:
        """Return what reads the current epoch, begun now if it was not yet."""
        if self._reader is None and self._pool is not None:
            self._reader = PoolReader(self._pool)
        elif self._reader is None and self._is_indexed:
            reader = self._make_reader(self._inner)
            reader.start_all(self._wanted)
            self._reader = OrderedSeqs(reader, len(self._wanted.order), 0)
        elif self._reader is None:
            epoch = int(self.epoch)
            where = f"dataset {self.name!r}, epoch {epoch or None}"
            seed = self.get_random_seed_for_epoch(epoch)
            self._reader = self._open_stream().open(epoch, seed, self._num_seqs, where)
        return self._reader

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        return self._open_reader().read(seq_idx)

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; a stream that ends at once is asked whether it should.

        Raises:
            TransformError: The stream should not end here.
        """
        is_less = super().is_less_than_num_seqs(seq_idx)
        if self._num_seqs == 0 and self._epoch is not None:
            self._open_reader().check_end()
        return is_less

    def _stop(self) -> None:
        """End running work; and the workers, if their settings are out of date."""
        reader, self._reader = self._reader, None
        self._wanted, self._length_reader = _NOTHING, None
        try:
            if reader is not None:
                reader.close()
        finally:
            if self._is_stale:
                self._close_workers()

    def _close_workers(self) -> None:
        """End the workers; they come back with the next epoch."""
        self._is_stale = False
        pool, self._pool = self._pool, None
        stream, self._stream = self._stream, None
        if pool is not None:
            pool.close_workers()
        if stream is not None:
            stream.close()

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence, unless it was said that lengths stay."""
        if not self._keeps_lengths or self._is_loaded(seq_idx):
            return super().get_seq_length(seq_idx)
        reader = self._open_reader()
        if isinstance(reader, OrderedSeqs):
            return reader.num_frames(seq_idx)
        if self._length_reader is None:  # workers are not asked
            self._length_reader = self._make_reader(without_workers(self._inner))
            self._length_reader.start_all(self._wanted)
        return self._length_reader.num_frames(seq_idx)

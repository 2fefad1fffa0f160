"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

What comes out is a function of the inner dataset, the function, the seed and the epoch. A function of one sequence
leaves order, tags and corpus indices as they are, so whatever can be asked of the inner dataset can be asked here, and
workers change nothing. A function over a stream makes another stream. Calling is in `call.py`, reading in `readers.py`,
what workers do in `work.py`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.batching import NumbersDict
from headrace.engine import Engine, EngineOptions, Job, Run, Skipping
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.order import Order, OrderReport, RangeOrder, derive_order_seed, occurrences
from headrace.rng import wants_rng
from headrace.specs import DataSpec

from ...base import Dataset, Owned, Workers
from ...cached2 import CachedDataset2
from ...checks import check_count, check_flag
from ...configs import DatasetConfig
from ...corpus import Corpus
from ...parts import open_part
from ...seq import DatasetSeq
from ..multi_proc import MultiProcDataset
from .call import DrawKey, MapSeq, MapStream, check_keys, read_seqs, wrong_count
from .functions import META_KEYS, parse_function
from .layout import layout_of, parse_outputs
from .readers import EpochPart, IndexedReader, PoolReader, SeqReader, StreamReader
from .work import MapWork, StreamWork, feed, known_frac, merge_streams, seqs_in_block, unpack_blocks

_OF_INNER = (  # options that say which sequences there are, and in which order
    "seq_ordering",
    "partition_epoch",
    "repeat_epoch",
    "seq_list_filter_file",
    "unique_seq_tags",
    "seq_order_seq_lens_file",
)
_HARMLESS = (None, 0, 1, False, "default")
_SEEDS = ("fixed_random_seed", "random_seed_offset")


class PostprocessingDataset(CachedDataset2):
    """A dataset whose sequences a function changes.

    Exactly one of `map_seq` and `map_seq_stream` is given: a function, "package.module:function", or a list of these,
    which are called in a row. A sequence is a dict, data key -> array, with the entries "seq_tag" (str), "seq_idx"
    (int) and, where it is known, "complete_frac" (float); a function may leave these out of what it returns. Of
    the keyword arguments `epoch`, `seq_idx` (`map_seq` only) and `rng` a function gets those that it takes, or all if
    it has `**kwargs`.

    `map_seq(data, *, rng, ...)` returns the sequence changed. Order, tags, corpus indices and number of sequences are
    those of the inner dataset. `rng` is a `numpy.random.RandomState` keyed by (seed, epoch, sequence), so what comes
    out does not depend on who calls the function or when. Workers read and change sequences, as those of
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
        _check_options(kwargs, map_seq, map_seq_stream)
        super().__init__(**kwargs)
        self.map_seq = None if map_seq is None else parse_function("map_seq", map_seq)
        self.map_seq_stream = None if map_seq_stream is None else parse_function("map_seq_stream", map_seq_stream)
        self.map_outputs = map_outputs
        self.buf_size = check_count("buf_size", buf_size, minimum=1)
        self.num_workers = check_count("num_workers", num_workers)
        self.keeps_lengths = check_flag("map_seq_preserves_lengths", map_seq_preserves_lengths)
        self.keeps_count = self._parse_keeps_count(map_seq_stream_preserves_num_seqs)
        self._engine_options = engine_options
        self._check_combination()
        self._own_seeds = {name: getattr(self, name) for name in _SEEDS}
        self._inner = open_part(dataset, parent_dataset=self, owner=self)
        if self.num_shards > 1 and self._inner.num_shards == 1:  # a dataset that was made before, or that has others
            self._inner.set_sharding(self.num_shards, self.shard_index)
        self._layout = layout_of(self._inner) if map_outputs is None else parse_outputs(map_outputs)
        check_keys(self._inner, layout_of(self._inner), META_KEYS)
        self._take_layout()
        self._follow_inner()
        self._is_indexed = self.map_seq is not None and _gives_all_in_order(self._inner)
        self._pool: MultiProcDataset | None = None
        self._engine: Engine | None = None
        self._reader: SeqReader | None = None
        self._order: Order = RangeOrder(range(0))
        self._occurrences: NDArray[np.int64] | None = None
        self._part: tuple[int, int, NDArray[np.int64], NDArray[np.int64] | None] | None = None
        self._sizes: dict[int, int] = {}
        self._is_stale = False  # whether workers were told what is no longer so
        self.knows_places = True
        if type(self).__init__ is PostprocessingDataset.__init__:  # a copy may be made in another folder
            self._ctor_args = (
                (),
                {**self._function_options(), **kwargs, **self._own_seeds, "dataset": Owned(self._inner)},
            )

    def _function_options(self) -> dict[str, Any]:
        return {
            "map_seq": self.map_seq,
            "map_seq_stream": self.map_seq_stream,
            "map_outputs": self.map_outputs,
            "map_seq_stream_preserves_num_seqs": self.keeps_count if self.map_seq_stream is not None else None,
            "buf_size": self.buf_size,
            "num_workers": self.num_workers,
            "map_seq_preserves_lengths": self.keeps_lengths,
            "engine_options": self._engine_options,
        }

    def _parse_keeps_count(self, value: bool | None) -> bool:
        if self.map_seq_stream is None:
            if value is not None:
                raise ConfigError("map_seq_stream_preserves_num_seqs is for map_seq_stream", fix="leave it out")
            return True
        if value is None:
            return getattr(self.map_seq_stream, "preserves_num_seqs", False) is True
        return check_flag("map_seq_stream_preserves_num_seqs", value)

    def _check_combination(self) -> None:
        if self.map_seq is None and self.keeps_lengths:
            raise ConfigError("map_seq_preserves_lengths is for map_seq", fix="leave it out")
        if self.map_seq is None and self._skips():
            raise ConfigError(
                "on_error=Skipping(...) with map_seq_stream: a stream cannot go on behind an error",
                fix="leave it out, or catch errors in the function",
            )

    def _skips(self) -> bool:
        """Whether sequences that fail are left out, so that their number is not known before the end."""
        options = self._engine_options
        return options is not None and isinstance(options.on_error, Skipping) and not self.seeds_by_tag

    def _take_layout(self) -> None:
        layout, inner = self._layout, self._inner
        if layout is None:
            return
        self.num_outputs = {key: spec.num_outputs for key, spec in layout.specs.items()}
        self.num_inputs = self.num_outputs["data"][0] if "data" in self.num_outputs else 0
        own = inner.num_outputs or {}
        self.labels = {
            key: labels
            for key, labels in inner.labels.items()
            if key in layout.specs and key in own and inner.get_data_dim(key) == layout.specs[key].dim
        }

    def _follow_inner(self) -> None:
        """Take over the options that make the order, which are those of the inner dataset; seeds are our own."""
        self._recipe = dataclasses.replace(self._inner._recipe, **self._own_seeds)
        self._seq_ordering = self._inner.seq_ordering

    def _change_recipe(self, **changes: Any) -> None:
        self._own_seeds.update({name: value for name, value in changes.items() if name in _SEEDS})
        of_inner = {name: value for name, value in changes.items() if name not in _SEEDS}
        if "seq_ordering" in of_inner:
            self._inner.seq_ordering = of_inner.pop("seq_ordering")
        if of_inner:
            self._inner._change_recipe(**of_inner)
        self._follow_inner()
        self._is_stale = True

    # --- parts ---

    @property
    def inner(self) -> Dataset:
        """The inner dataset."""
        return self._inner

    @property
    def _base(self) -> Dataset:
        """The inner dataset without its workers, where it has some and its stream is the same without."""
        return _without_workers(self._inner)

    @property
    def _ordered(self) -> Dataset:
        """The dataset without workers that was started with the current order."""
        pool = self._pool
        if pool is None or not self._is_pooled() or self._part is not None:
            return self._base
        whole = pool.inner
        assert isinstance(whole, PostprocessingDataset)
        return whole._base

    @property
    def is_indexed(self) -> bool:
        """Whether any sequence can be made without those before it: order and tags are those of the inner dataset."""
        return self._is_indexed

    def get_parts(self) -> Sequence[Dataset]:
        """Return the inner dataset."""
        return (self._inner,)

    def get_corpus(self) -> Corpus:
        """Return what the inner dataset knows, as far as the function leaves it as it is."""
        inner = self._inner.get_corpus()
        corpus = dataclasses.replace(
            inner,
            knows_order=lambda: self._is_indexed,
            specs=self.specs,
            knows_dtypes=self._layout is not None and not self._layout.any_dtype,
            lengths=lambda key, may_cost: inner.lengths(key, may_cost) if self.keeps_lengths_of(key) else None,
            covers_lengths=lambda key: self.keeps_lengths_of(key) and inner.covers_lengths(key),
            draws_by_occurrence=inner.is_indexed and (inner.draws_by_occurrence or self._draws()),
        )
        return corpus if self._is_indexed else dataclasses.replace(corpus.without_index(), size=lambda: None)

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order, and what the function depends on."""
        return "; ".join([self._inner.order_text(epoch), *self._reading_details()])

    def draws_text(self) -> str:
        """Return what the function depends on, besides its code and what it gets."""
        if self.map_seq is not None:
            return f"function of a sequence, seeds {self._own_seeds}"
        return f"function of a stream, seeds {self._own_seeds}, {self.num_workers} workers"

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return those of speed; what a function of a stream makes depends on the workers."""
        idle = super().idle_options(options) | {"buf_size"}
        return idle if options.get("map_seq_stream") is None else idle - {"num_workers"}

    def get_workers(self) -> Workers | None:
        """Return them; `map_seq` can be called for any sequence, so whoever reads some does it himself."""
        is_same = self._is_pooled()
        if not (self.num_workers or is_same):
            return None
        return Workers(
            type(self).__name__,
            self.num_workers,
            self if is_same else None,
            self if is_same else None,
            is_same_without=is_same,
            is_inline=self.num_workers == 0,
            engine_options=self._engine_options,
        )

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out."""
        return self._skips()

    def forget_places(self) -> None:
        """See `Dataset.forget_places`."""
        super().forget_places()
        self.knows_places = False

    @property
    def supports_jumps(self) -> bool:
        """Whether what lies in between is not read by a reader that jumps ahead."""
        return self._is_indexed and self._inner.supports_jumps

    @property
    def specs(self) -> dict[str, DataSpec]:
        """The layout of the data keys whose dtype is known."""
        layout = self._layout
        return {} if layout is None else {k: spec for k, spec in layout.specs.items() if k not in layout.any_dtype}

    def keeps_lengths_of(self, data_key: str) -> bool:
        """Tell whether the lengths of a data key are those of the inner dataset."""
        return self.keeps_lengths and self._is_indexed and data_key in self._inner.get_data_keys()

    def _make_map_stream(self) -> MapStream:
        assert self.map_seq_stream is not None
        return MapStream(self.map_seq_stream, self._layout, self.keeps_count)

    def _make_map_seq(self) -> MapSeq:
        assert self.map_seq is not None
        return MapSeq(
            self.map_seq,
            self._layout,
            self._own_seeds["random_seed_offset"] or 0,
            self._own_seeds["fixed_random_seed"],
            self.keeps_lengths,
            keeps_tags=self._is_indexed,
        )

    def get_random_seed_for_epoch(self, epoch: int | None, num_epochs_fixed: int = 1) -> int:
        """Return the seed of an epoch by RETURNN's rule, of this dataset's own options: sub-epochs are epochs here."""
        return derive_order_seed(epoch or 1, num_epochs=num_epochs_fixed, **self._own_seeds)

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`.

        Raises:
            ConfigError: `seq_list` or `seq_order` with `map_seq_stream`, whose sequences are not those of the corpus.
        """
        given = seq_list is not None or seq_order is not None
        if given and self.map_seq is None:
            raise ConfigError(
                "a dataset with map_seq_stream takes no seq_list or seq_order: it makes its own sequences",
                where=f"dataset {self.name!r}",
                fix="give the order to the inner dataset, or use map_seq",
            )
        super().init_seq_order(epoch)
        self._stop()
        if epoch is None and not given:
            self._inner.init_seq_order()
            return True
        starts = self._open_pool() if self._is_pooled() else self._inner
        starts.init_seq_order(epoch, seq_list, seq_order)
        if self._is_indexed:
            self._order, self._occurrences = starts.get_checked_seq_order(), self._ordered.get_occurrences()
            self._num_seqs = None if self._skips() else len(self._order)
        elif self.keeps_count and not self._skips():
            self._num_seqs = _finite_num_seqs(self._inner)
        return True

    def init_part(
        self, epoch: int, first: int, indices: NDArray[np.int64], occurrences: NDArray[np.int64] | None = None
    ) -> int:
        """Start a part of an epoch, see `Dataset.init_part`; this process reads it, whatever `num_workers` says."""
        if not self._is_indexed:
            return super().init_part(epoch, first, indices, occurrences)
        super().init_seq_order(epoch)
        self._stop()
        place = self._base.init_part(epoch, first, indices, occurrences)
        self._order, self._occurrences = self._base.get_checked_seq_order(), occurrences
        self._part = epoch, first, indices, occurrences
        self._num_seqs = place + len(indices)
        self._reader = IndexedReader(self._base, self._make_map_seq(), self._epoch_part(place, first - place))
        return place

    def _epoch_part(self, first: int = 0, shift: int = 0) -> EpochPart:
        """Return what is known of the current order, whose first sequence is read under this place."""
        counts = self._draws() and self._order.may_repeat
        return EpochPart(
            int(self.epoch),
            first,
            shift,
            self._order,
            self.count_occurrences if counts else None,
            self._part,
            self._sizes,
            by_tag=self.seeds_by_tag,
            knows_places=self.knows_places,
        )

    def get_occurrences(self) -> NDArray[np.int64] | None:
        """Return how often each sequence of the current order came before, if anything is drawn by it."""
        if self._is_indexed and self._order.may_repeat and self._draws():
            return self.count_occurrences()
        return self._occurrences

    def _draws(self) -> bool:
        return self.map_seq is not None and wants_rng(self.map_seq)

    def count_occurrences(self) -> NDArray[np.int64]:
        """Return how often each sequence of the current order came before, `int64[n]`."""
        if self._occurrences is None:
            self._occurrences = occurrences(self._order)
        return self._occurrences

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
        return self._order

    @property
    def order_report(self) -> OrderReport | None:
        """What the recipe of the inner dataset leaves out or repeats."""
        return self._inner.order_report

    def supports_seq_order_sorting(self) -> bool:
        """Whether the inner dataset does."""
        return self._inner.supports_seq_order_sorting()

    def supports_sharding(self) -> bool:
        """Whether the inner dataset does."""
        return self._inner.supports_sharding()

    def _take_shard(self, num_shards: int, shard_index: int) -> None:
        """Make the inner dataset one shard of `num_shards`; takes effect with the next `init_seq_order`."""
        self._inner.set_sharding(num_shards, shard_index)
        self._follow_inner()
        self._is_stale = True

    # --- reading ---

    def _is_pooled(self) -> bool:
        """Whether workers read and change sequences by their corpus indices.

        Not where tags are the key of what is drawn: this dataset is then a part of another one, which has workers.
        """
        wants = self.num_workers > 0 or self._engine_options is not None
        return wants and self._is_indexed and not self.seeds_by_tag

    def _open_pool(self) -> MultiProcDataset:
        """Return this dataset without workers, in a `MultiProcDataset`."""
        if self._pool is None:
            config = {
                **self._function_options(),
                **self._own_seeds,
                "class": PostprocessingDataset,
                "name": self.name,
                "dataset": self._base,
                "num_workers": 0,
                "engine_options": None,
            }
            self._pool = MultiProcDataset(config, self.num_workers, self.buf_size, engine_options=self._engine_options)
            self._pool.initialize()
        return self._pool

    def _open_reader(self) -> SeqReader:
        """Begin to read the current epoch."""
        if self._is_pooled():
            return PoolReader(self._open_pool())
        if self._is_indexed:
            return IndexedReader(self._inner, self._make_map_seq(), self._epoch_part())
        where = f"dataset {self.name!r}, epoch {int(self.epoch) or None}"
        if self.num_workers > 0 or (self.map_seq is not None and self._engine_options is not None):
            run, seqs = self._start_workers()
            return StreamReader(seqs, where, run.close)
        stream = self._map_each() if self.map_seq is not None else self._map_stream()
        return StreamReader(stream, where, stream.close)

    def _map_each(self) -> Generator[DatasetSeq]:
        """Yield the sequences of a dataset that does not know its order, each changed."""
        map_seq, epoch = self._make_map_seq(), int(self.epoch)
        for seq, key, frac in self._read_with_keys():
            get_frac = None if frac is None else (lambda frac=frac: frac)
            made = map_seq(seq, epoch=epoch, seq_idx=seq.seq_idx, key=key, frac=get_frac)
            if made.complete_frac is None:
                made.complete_frac = frac
            yield made

    def _read_with_keys(self) -> Iterator[tuple[DatasetSeq, DrawKey, float | None]]:
        """Yield each sequence of a stream with its place as a key: tags may repeat there, and nobody counts them."""
        for place, seq in enumerate(read_seqs(self._inner)):
            yield seq, DrawKey(f"map_seq of {seq.seq_tag}", place), known_frac(self._inner, seq)

    def _map_stream(self) -> Generator[DatasetSeq]:
        epoch = int(self.epoch)
        return self._make_map_stream()(
            read_seqs(self._inner),
            epoch=epoch,
            rng=np.random.RandomState(self.get_random_seed_for_epoch(epoch) % 2**32),
            get_frac=lambda seq: known_frac(self._inner, seq),
        )

    def _start_workers(self) -> tuple[Run, Iterator[DatasetSeq]]:
        """Let the workers begin with a stream; return their run, and what they make."""
        block_seqs, epoch = seqs_in_block(self.buf_size), int(self.epoch)
        if self._engine is None:
            if self.map_seq is not None:
                job = Job(MapWork(self._make_map_seq()))
            else:
                job = Job(StreamWork(self._base, self._make_map_stream(), block_seqs))
            options = dataclasses.replace(
                self._engine_options or EngineOptions(), tickets_per_worker=max(self.buf_size // block_seqs, 1)
            )
            self._engine = Engine(job, num_workers=self.num_workers, options=options)
        if self.map_seq is not None:
            run = self._engine.run(feed(self._read_with_keys(), epoch, block_seqs))
            return run, unpack_blocks(run)
        run = self._engine.run_stream((epoch, self.get_random_seed_for_epoch(epoch)))
        return run, merge_streams(run, self.num_workers)

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if self._reader is None:
            self._reader = self._open_reader()
        seq = self._reader.read(seq_idx)
        if self._num_seqs is not None and (seq is None or seq_idx + 1 == self._num_seqs):
            self._check_count(seq_idx + (seq is not None))
        if seq is not None and seq.complete_frac is None and self._num_seqs and self._part is None:
            seq.complete_frac = (seq_idx + 1) / self._num_seqs
        return seq

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this place; a stream function is asked whether it ends where it should.

        Raises:
            TransformError: It does not.
        """
        is_less = super().is_less_than_num_seqs(seq_idx)
        if self._num_seqs == 0 and self._epoch is not None and not self._is_indexed:
            self._check_count(0)
        return is_less

    def _check_count(self, num_made: int) -> None:
        """Refuse a stream function that makes more or fewer sequences than was said; all are made but those too many.

        Raises:
            TransformError: It does.
        """
        if self._is_indexed:
            return
        if self._reader is None:
            self._reader = self._open_reader()
        has_more = num_made == self._num_seqs and self._reader.read(num_made) is not None
        if num_made != self._num_seqs or has_more:
            came = f"{f'more than {num_made}' if has_more else num_made} came out of {self._num_seqs}"
            error: HeadraceError = SourceError(
                f"the inner dataset has another number of sequences than it said: {came}",
                where=f"inner dataset {self._inner.name!r}, epoch {int(self.epoch)}",
            )
            if self.map_seq_stream is not None:
                error = wrong_count(came)
            self._reader.fail(error)
            raise error

    def _stop(self) -> None:
        """End what is under way; and the workers, if what they were told is no longer so."""
        reader, self._reader = self._reader, None
        self._order, self._occurrences, self._part = RangeOrder(range(0)), None, None
        try:
            if reader is not None:
                reader.close()
        finally:
            if self._is_stale:
                self._close_workers()

    def _close_workers(self) -> None:
        """End the workers; they come back with the next epoch."""
        self._is_stale = False
        self._sizes.clear()
        pool, self._pool = self._pool, None
        engine, self._engine = self._engine, None
        if pool is not None:
            pool.close_workers()
        if engine is not None:
            engine.close()

    # --- what the inner dataset knows ---

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence, unless it was said that lengths stay."""
        if not (self.keeps_lengths and self._is_indexed) or self._is_loaded(seq_idx):
            return super().get_seq_length(seq_idx)
        lengths = self._ordered.get_seq_length(seq_idx)
        return NumbersDict({key: lengths[key] for key in self.get_data_keys()})

    def get_all_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, as the inner dataset does; `map_seq` only."""
        self._check_maps_each()
        return self._inner.get_all_tags()

    def get_corpus_tags(self) -> Sequence[str]:
        """Return the tags of the whole corpus, before any filter."""
        self._check_maps_each()
        return self._inner.get_corpus_tags()

    def get_total_num_seqs(self, *, fast: bool = False) -> int:
        """Return the number of sequences of the whole corpus; not if `map_seq_stream` may change it."""
        if not self.keeps_count:
            self._not_offered("get_total_num_seqs with a map_seq_stream that may change it")
        return self._inner.get_total_num_seqs(fast=fast)

    def _check_maps_each(self) -> None:
        if self.map_seq is None:
            self._not_offered("get_all_tags with map_seq_stream")

    def have_corpus_seq_idx(self) -> bool:
        """Whether the order is known."""
        return self._is_indexed

    def get_corpus_seq_idx(self, seq_idx: int) -> int:
        """Return the place in the corpus of a sequence of the current order."""
        return self.get_current_seq_order()[seq_idx]

    # --- layout ---

    def _spec_of(self, key: str) -> DataSpec | None:
        return None if self._layout is None else self._layout.specs.get(key)

    def get_data_dtype(self, key: str) -> str:
        """Return the dtype name."""
        spec = self._spec_of(key)
        if spec is None or (self._layout is not None and key in self._layout.any_dtype):
            return super().get_data_dtype(key)
        return spec.dtype

    def is_data_sparse(self, key: str) -> bool:
        """Whether the key holds class indices."""
        spec = self._spec_of(key)
        return super().is_data_sparse(key) if spec is None else spec.sparse

    def get_data_shape(self, key: str) -> list[int | None]:
        """Return the shape of one frame, `None` for a free axis."""
        spec = self._spec_of(key)
        return super().get_data_shape(key) if spec is None else list(spec.shape)


def _check_options(options: Mapping[str, Any], map_seq: Any, map_seq_stream: Any) -> None:
    """Refuse options that would have no effect here, and functions that would be called one after the other."""
    if (map_seq is None) == (map_seq_stream is None):
        given = "both are" if map_seq is not None else "none is"
        raise ConfigError(f"one of map_seq and map_seq_stream is needed, {given} given")
    for name in _OF_INNER:
        if name in options and options[name] not in _HARMLESS:
            raise ConfigError(
                f"{name}={options[name]!r} of a PostprocessingDataset: which sequences there are, and in which order, "
                "is said by the inner dataset",
                fix=f'give {name} in the config "dataset"; a stream is sorted by LaplaceOrdering',
            )


def _gives_all_in_order(dataset: Dataset) -> bool:
    """Tell whether a dataset says the order of an epoch, and gives all sequences of it."""
    return dataset.get_corpus().knows_order() and not dataset.skips_failed


def _finite_num_seqs(dataset: Dataset) -> int | None:
    try:
        num_seqs = dataset.num_seqs
    except NotImplementedError:
        return None
    return None if math.isinf(num_seqs) else int(num_seqs)


def _without_workers(dataset: Dataset) -> Dataset:
    """Return a dataset whose stream is the same and that has no workers, where there is one: workers need none."""
    while isinstance(dataset, MultiProcDataset) and _gives_all_in_order(dataset):
        dataset = dataset.inner
    return dataset

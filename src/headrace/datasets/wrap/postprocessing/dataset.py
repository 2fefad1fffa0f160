"""`PostprocessingDataset`: another dataset whose sequences a function changes, one by one or as a stream.

What comes out is a function of the inner dataset, the function, the seed and the epoch. A function of one sequence
leaves order, tags and corpus indices as they are, so whatever can be asked of the inner dataset can be asked here, and
workers change nothing. A function over a stream makes another stream. Functions are called in `calls.py`; what they get
is read in `reading.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.batching import NumbersDict
from headrace.engine import EngineOptions, Skipping
from headrace.errors import ConfigError, SourceError
from headrace.order import derive_order_seed
from headrace.specs import DataSpec

from ...checks import check_count, check_flag
from ...configs import DatasetConfig
from ...corpus import Corpus, InnerCorpus, LengthsOf
from ...foreign import start_given
from ...orders import Orders
from ...parts import open_corpus
from ...reading.reader import CountedOrder, GivenOrder, Reader, ReadRequest, SeqStream
from ...seq import DatasetSeq
from ...workers import DatasetWorkers
from ..inner import InnerDataset
from ..multi_proc import MultiProcDataset
from .calls import FunctionLayout, MapSeq, MapStream
from .functions import META_KEYS, Function, draws, parse_function
from .reading import FunctionStream, MapReader, gives_all_in_order, without_workers

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


class MappedCorpus(InnerCorpus):
    """A corpus whose sequences a function changes.

    Order and tags are those of the inner corpus if any sequence can be made without those before it; else it is a
    stream, which a dataset reads.

    Args:
        name: See `Corpus`.
        inner: The corpus inside.
        function: The function.
        is_of_seq: Whether it is one of one sequence.
        layout: What it must make.
        seeds: Options of the order that are its own.
        says_lengths: Whether it was said that it leaves lengths as they are.
        keeps_count: Whether as many sequences come out as go in.
        num_workers: How many workers read and change sequences.
        buf_size: How many sequences each may be ahead.
        engine_options: See `EngineOptions`.
    """

    def __init__(
        self,
        name: str,
        inner: Corpus,
        function: Function,
        is_of_seq: bool,
        layout: FunctionLayout,
        seeds: Mapping[str, Any],
        *,
        says_lengths: bool = False,
        keeps_count: bool = True,
        num_workers: int = 0,
        buf_size: int = 1,
        engine_options: EngineOptions | None = None,
    ) -> None:
        super().__init__(name, inner)
        self.function, self.is_of_seq, self.function_layout, self._seeds = function, is_of_seq, layout, dict(seeds)
        self.says_lengths, self.keeps_count = says_lengths, keeps_count
        self.num_workers, self.buf_size, self.engine_options = num_workers, buf_size, engine_options
        self._draws = is_of_seq and draws(function)

    @property
    def orders(self) -> Orders:
        """Those of the inner corpus, but for the seeds."""
        made = self.inner.orders.changed(**self._seeds)
        made.planner = self.inner.orders.planner
        return made

    def with_orders(self, **options: Any) -> Corpus:  # type: ignore[override]
        """Return this corpus with other options of the order; seeds are its own."""
        own = {name: options.pop(name) for name in _SEEDS if name in options}
        made = super().with_orders(**options)
        made._seeds = {**self._seeds, **own}
        return made

    def without_workers(self) -> MappedCorpus:
        """Return this corpus without workers, here and inside."""
        made = self.with_parts(without_workers)
        made.num_workers, made.engine_options = 0, None
        return made

    # --- sequences ---

    def knows_order(self) -> bool:
        """Whether any sequence can be made without those before it."""
        return self.is_of_seq and gives_all_in_order(self.inner)

    def size(self) -> int | None:
        """Return how many sequences there are, if any can be made without those before it."""
        return super().size() if self.knows_order() else None

    @property
    def knows_dtypes(self) -> bool:  # type: ignore[override]
        """Whether those of what it makes are."""
        return self.function_layout.knows_dtypes

    @property
    def specs(self) -> Mapping[str, DataSpec]:  # type: ignore[override]
        """What the function must make, if the dtypes are known."""
        return self.function_layout.specs or {} if self.knows_dtypes else {}

    def layout(self) -> Mapping[str, DataSpec | None] | None:
        """Return what the function must make."""
        return self.function_layout.specs

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:  # type: ignore[override]
        """Those of the inner corpus, where they fit."""
        before, after = self.inner.layout() or {}, self.function_layout.specs or {}
        dims = {key: (spec.dim, before[key]) for key, spec in after.items() if key in before}
        fits = {key for key, (dim, spec) in dims.items() if spec is not None and spec.num_outputs[0] == (dim or 1)}
        return {key: labels for key, labels in self.inner.labels.items() if key in fits}

    @property
    def keeps_lengths(self) -> bool:
        """Whether the function leaves lengths as they are, and they can be asked for."""
        return self.says_lengths and self.knows_order()

    def lengths(self, key: str, may_cost: bool, epoch: int | None = None) -> LengthsOf | None:
        """Ask the inner corpus, if the function leaves them as they are."""
        is_kept = self.keeps_lengths and key in (self.inner.layout() or ())
        return self.inner.lengths(key, may_cost, epoch) if is_kept else None

    @property
    def draws_by_occurrence(self) -> bool:
        """Whether the function draws, or something inside."""
        return self._draws or super().draws_by_occurrence

    def all_tags(self) -> Sequence[str]:
        """Ask the inner corpus; a function over the stream makes other ones."""
        if not self.is_of_seq:
            self._not_offered("get_all_tags with map_seq_stream")
        return super().all_tags()

    def num_seqs(self, *, fast: bool = False) -> int:
        """Ask the inner corpus; not if the function may change it."""
        if not self.keeps_count:
            self._not_offered("get_total_num_seqs with a map_seq_stream that may change it")
        return super().num_seqs(fast=fast)

    def order(self, epoch: int | None, given: GivenOrder | None = None, *, counts: bool = False) -> CountedOrder:
        """Ask the inner corpus."""
        if not self.knows_order():
            self._not_offered("the order of an epoch")
        return super().order(epoch, given, counts=counts or self._draws)

    # --- reading ---

    @property
    def wants_engine(self) -> bool:
        """Whether sequences are changed by workers, or under the policies of an engine."""
        return self.num_workers > 0 or self.engine_options is not None

    @property
    def is_pooled(self) -> bool:
        """Whether workers read and change sequences by their corpus indices.

        Not where tags are the key of what is drawn: it is then a part of another one, which has workers.
        """
        return self.wants_engine and self.knows_order() and not self.seeds_by_tag

    @property
    def workers(self) -> DatasetWorkers | None:
        """Its workers; `map_seq` can be called for any sequence, so each reader calls it itself."""
        is_same = self.is_pooled
        if not (self.num_workers or is_same):
            return None
        read, num_workers, told = (self if is_same else None), self.num_workers, self.engine_options
        return DatasetWorkers(
            self.kind, num_workers, read, read, is_same, is_inline=num_workers == 0, engine_options=told
        )

    @property
    def skips_failed(self) -> bool:
        """Whether sequences that fail are left out; not where this is a part of a dataset that has workers."""
        told = self.engine_options
        return told is not None and isinstance(told.on_error, Skipping) and not self.seeds_by_tag

    def reader(self) -> Reader:
        """Return a reader that calls the function here, for what is read here."""
        return self.map_reader(without_workers(self.inner))

    def map_reader(self, inner: Corpus) -> MapReader:
        """Return a reader that calls the function for what it reads of the inner corpus, or of one like it."""
        kept = list(self.layout() or ()) if self.keeps_lengths else None
        return MapReader(inner, self.map_seq(), by_tag=self.seeds_by_tag, kept=kept)

    def map_seq(self) -> MapSeq:
        """Return what calls the function of one sequence."""
        keeps = {"keeps_lengths": self.says_lengths, "keeps_tags": self.knows_order()}
        return MapSeq(self.function, self.function_layout, self._seeds, **keeps)

    # --- what decides what comes ---

    def order_text(self, epoch: int) -> str:
        """Return what decides the inner order, and what the function depends on."""
        return "; ".join([super().order_text(epoch), *self.reading_texts()])

    def reading_texts(self) -> list[str]:
        """Return texts of what is done here to sequences."""
        texts = super().reading_texts()
        return texts if self.is_of_seq else [*texts, f"{self.num_workers} workers in turn", f"seeds {self._seeds}"]


class PostprocessingDataset(InnerDataset):
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

    _content_options = ("map_outputs",)
    _of_epoch = InnerDataset._of_epoch | {"_pool", "_stream", "_inner_seqs", "_is_part"}
    _pool: MultiProcDataset | None = None  # reads and changes sequences of an order
    _stream: FunctionStream | None = None
    _inner_seqs: SeqStream | None = None  # what a stream is made of
    _is_part = False  # whether the current order is a part of an epoch
    _is_stale = False  # whether workers were told what is no longer so

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
        is_of_seq = map_seq is not None
        function = parse_function(*(("map_seq", map_seq) if is_of_seq else ("map_seq_stream", map_seq_stream)))
        check_count("num_workers", num_workers)
        check_count("buf_size", buf_size, minimum=1)
        check_flag("map_seq_preserves_lengths", map_seq_preserves_lengths)
        keeps_count = map_seq_stream_preserves_num_seqs
        if is_of_seq and keeps_count is not None:
            raise ConfigError("map_seq_stream_preserves_num_seqs is for map_seq_stream", fix="leave it out")
        if map_seq_preserves_lengths and not is_of_seq:
            raise ConfigError("map_seq_preserves_lengths is for map_seq", fix="leave it out")
        if engine_options is not None and isinstance(engine_options.on_error, Skipping) and not is_of_seq:
            raise ConfigError(
                "on_error=Skipping(...) with map_seq_stream: a stream cannot go on behind an error",
                fix="leave it out, or catch errors in the function",
            )
        if keeps_count is None:
            keeps_count = is_of_seq or getattr(function, "preserves_num_seqs", False) is True
        check_flag("map_seq_stream_preserves_num_seqs", keeps_count)
        super().__init__(**kwargs)
        inner = open_corpus(dataset, parent_dataset=self, owner=self)
        if self.num_shards > 1 and inner.orders.recipe.num_shards == 1:  # made before, or with workers
            inner = inner.with_orders(num_shards=self.num_shards, shard_index=self.shard_index)
        corpus = MappedCorpus(
            self.name,
            inner,
            function,
            is_of_seq,
            _layout_of(inner, map_outputs),
            {name: getattr(self, name) for name in _SEEDS},
            says_lengths=map_seq_preserves_lengths,
            keeps_count=keeps_count,
            num_workers=num_workers,
            buf_size=buf_size,
            engine_options=engine_options,
        )
        self._set_corpus(corpus)

    def _begin(self) -> None:
        super()._begin()
        self._pool = self._stream = None

    @property
    def _mapped(self) -> MappedCorpus:
        corpus = self._read
        assert isinstance(corpus, MappedCorpus)
        return corpus

    def change_orders(self, **options: Any) -> None:
        """Set options of the order; with the next epoch workers start anew, as they were told the old ones."""
        self._is_stale = True
        super().change_orders(**options)

    def seed_by_tag(self) -> None:
        """Key the generators of functions by tags, see `Dataset.seed_by_tag`; workers start anew."""
        self._is_stale = True
        super().seed_by_tag()

    @classmethod
    def idle_options(cls, options: Mapping[str, Any]) -> frozenset[str]:
        """Return the options of speed; the result of a stream function depends on the workers."""
        idle = super().idle_options(options) | {"buf_size"}
        return idle if options.get("map_seq_stream") is None else idle - {"num_workers"}

    def get_random_seed_for_epoch(self, epoch: int | None, num_epochs_fixed: int = 1) -> int:
        """Return the seed of an epoch by RETURNN's rule, of this dataset's own options: sub-epochs are epochs here."""
        return derive_order_seed(
            epoch or 1, num_epochs=num_epochs_fixed, **{name: getattr(self, name) for name in _SEEDS}
        )

    # --- order ---

    def init_seq_order(
        self, epoch: int | None = None, seq_list: Sequence[str] | None = None, seq_order: Sequence[int] | None = None
    ) -> bool:
        """Start a (sub-)epoch, see `Dataset.init_seq_order`.

        Raises:
            ConfigError: `seq_list` or `seq_order` with `map_seq_stream`, whose sequences are not those of the corpus.
        """
        given = GivenOrder.of(seq_list, seq_order)
        if given is not None and not self._mapped.is_of_seq:
            raise ConfigError(
                "a dataset with map_seq_stream takes no seq_list or seq_order: it makes its own sequences",
                where=f"dataset {self.name!r}",
                fix="give the order to the inner dataset, or use map_seq",
            )
        self._stop()
        super().init_seq_order(epoch, seq_list, seq_order)
        if self._mapped.is_pooled and (epoch is not None or given is not None):
            if self._pool is None:
                corpus, options = self._mapped.without_workers(), self._mapped.engine_options
                num_workers, ahead = self._mapped.num_workers, self._mapped.buf_size
                self._pool = MultiProcDataset(corpus, num_workers, ahead, engine_options=options, name=self.name)
            start_given(self._pool, epoch, given)  # workers begin when something is read
        return True

    def start_part(self, wanted: ReadRequest) -> int:
        """Start the epoch of a request with its sequences; this process reads them, whatever `num_workers` says."""
        self._stop()
        first = super().start_part(wanted)
        self._is_part = self._request is not None
        return first

    def _start_stream(self, epoch: int | None, given: GivenOrder | None) -> None:
        self._inner_seqs = self._mapped.inner.stream(epoch, given)
        if self._mapped.keeps_count and not self._mapped.skips_failed:
            self._num_seqs = self._inner_seqs.num_seqs

    def finish_epoch(self, *, free_resources: bool = False) -> None:
        """End the epoch; with `free_resources` also the workers."""
        self._stop(free_resources=free_resources)
        super().finish_epoch(free_resources=free_resources)

    # --- reading ---

    def _open_reader(self) -> Reader:
        """Return the reader of the current order, begun now if it was not yet; workers that read it are not asked."""
        if self._reader is None:
            inner, is_here = self._mapped.inner, self._pool is not None or self._is_part
            reader = self._mapped.map_reader(without_workers(inner) if is_here else inner)
            assert self._request is not None
            reader.start(self._request, is_all=not self._is_part)
            self._reader = reader
        return self._reader

    def _open_stream(self) -> FunctionStream:
        """Return the stream of the current epoch, begun now if it was not yet."""
        mapped = self._mapped
        if self._stream is None:
            function: MapSeq | MapStream = mapped.map_seq()
            if not mapped.is_of_seq:
                function = MapStream(mapped.function, mapped.function_layout, mapped.keeps_count)
            options = mapped.num_workers, mapped.buf_size, mapped.engine_options
            self._stream = FunctionStream(mapped.inner, function, *options)
        if not self._stream.is_open:
            epoch = int(self.epoch)
            assert self._inner_seqs is not None
            num_seqs = None if mapped.is_of_seq else self._num_seqs
            self._stream.start(self._inner_seqs, epoch, self.get_random_seed_for_epoch(epoch), num_seqs)
        return self._stream

    def _collect_single_seq(self, seq_idx: int) -> DatasetSeq | None:
        if self._inner_seqs is not None:
            return self._open_stream().read(seq_idx)
        if self._pool is None or self._is_part:
            return super()._collect_single_seq(seq_idx)
        if not self._pool.is_less_than_num_seqs(seq_idx):
            return None
        self._pool.load_seqs(seq_idx, seq_idx + 1)
        return self._pool.get_seq(seq_idx)

    def is_less_than_num_seqs(self, seq_idx: int) -> bool:
        """Whether the epoch has a sequence at this position; a stream that ends at once is asked whether it should.

        Raises:
            TransformError: The stream should not end here.
        """
        is_less = super().is_less_than_num_seqs(seq_idx)
        if self._num_seqs == 0 and self._inner_seqs is not None:
            self._open_stream().check_end()
        return is_less

    def _stop(self, *, free_resources: bool = False) -> None:
        """End running work; with `free_resources` also the workers: they come back with the next epoch."""
        free_resources = free_resources or self._is_stale
        pool, stream, self._is_stale = self._pool, self._stream, False
        self._request, self._reader, self._inner_seqs, self._is_part = None, None, None, False
        if free_resources:
            self._pool = self._stream = None
        if pool is not None:
            pool.finish_epoch(free_resources=free_resources)
        if stream is not None:
            stream.stop(free_resources=free_resources)

    def get_seq_length(self, seq_idx: int) -> NumbersDict:
        """Return data key -> number of frames; reads the sequence, unless it was said that lengths stay."""
        if not self._mapped.keeps_lengths or self._is_loaded(seq_idx) or self._request is None:
            return super().get_seq_length(seq_idx)
        return self._open_reader().num_frames(seq_idx - (self._request.first or 0))


def _layout_of(inner: Corpus, map_outputs: Any) -> FunctionLayout:
    """Return the layout of what comes out.

    Raises:
        SourceError: The inner dataset has data keys that the function gets something else under.
    """
    layout = FunctionLayout.of(inner)
    taken = sorted(set(layout.specs or ()) & set(META_KEYS))
    if taken:
        raise SourceError(
            f"the inner dataset has the data keys {taken}, and the function gets something else under these names",
            where=f"dataset {inner.name!r}",
            fix="rename them, for example by the data_map of a MetaDataset",
        )
    return layout if map_outputs is None else FunctionLayout.parse(map_outputs)

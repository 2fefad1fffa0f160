"""Starts epochs on the engine for datasets whose order is known, which the trainer plans; for streams, see `streams/`.

Invariant: a run is a pure function of (data, recipe, position); what is remembered here from one to the next saves time
only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self

from headrace.batching import PLAN_VERSION, PlanCounts, Steps
from headrace.batching.data_key import choose_data_key
from headrace.batching.dealing import Dealt, LastStep
from headrace.engine import Engine, Job, WorkerInfo
from headrace.errors import ConfigError
from headrace.ranks import Ranks
from headrace.rng import wants_rng

from .inputs import EpochOrder, PlanNeeds, Subject
from .iterate import CloseableRun, LoaderPosition
from .options import LoaderOptions
from .plan import EpochPlan, NoLengthError, PlanRecipe, Progress
from .sampler import SampledBatches
from .shapes import BatchShapes, no_shapes_error, shapes_of
from .state import digest_text
from .steps import Arrivals, EpochRun, PlannedArrivals, check_position, steps_of
from .work import BatchWork, CarriedTask, WorkOptions


@dataclass(frozen=True)
class Recipe:
    """Everything that determines what a loader delivers.

    Attributes:
        options: The user's.
        plan: How sequences form batches.
        needs: What is to be known of an epoch.
        work: What is done to a batch.
    """

    options: LoaderOptions
    plan: PlanRecipe
    needs: PlanNeeds
    work: BatchWork

    @classmethod
    def of(cls, options: LoaderOptions, subject: Subject) -> Self:
        """Combine the options with what is known about the dataset."""
        batching, is_stream = options.batching, subject.is_stream
        needs_lengths = batching.needs_lengths
        if is_stream:
            data_key = batching.data_key or subject.data_key
        else:
            data_key = choose_data_key(batching, subject.data_key, subject.reading.specs, subject.name)
        if needs_lengths and not subject.knows_lengths(data_key):
            raise ConfigError(
                f"{batching} needs the lengths of the sequences, and they are not known",
                where=subject.name,
                fix="give them (MapDataset: lengths=, or a method get_seq_len; PostprocessingDataset: "
                "map_seq_preserves_lengths=True, where it does), or use FixedCount(n)",
            )
        work = WorkOptions(
            options.seed,
            options.transform,
            options.collate,
            options.pad_values,
            options.pad_multiple,
            None if is_stream else data_key,
            batching,
            options.seeds_globals,
        )
        plan = PlanRecipe(
            batching,
            options.order_of_batches,
            batching.window_seqs(options.window_seqs or subject.window_seqs),
            options.seed,
            grows=is_stream and options.window_seqs is None,
            checks_lengths=needs_lengths and subject.corpus.may_change_lengths,
            seeds_globals=options.seeds_globals,
        )
        occurs = options.transform is not None and wants_rng(options.transform)
        return cls(
            options,
            plan,
            PlanNeeds(data_key, needs_lengths, occurs),
            BatchWork(subject.reading, work),
        )

    @property
    def data_key(self) -> str | None:
        """The data key whose frames count; None if sequences are not by data key. In streams the first item decides."""
        return self.needs.data_key

    @property
    def batching_text(self) -> str:
        """Everything that determines the batches, except order and seed, as text."""
        plan = self.plan
        window = f"{plan.window_seqs}+" if plan.grows else str(plan.window_seqs)
        return f"{plan.batching} {plan.batch_order} {window} {self.data_key} plan {PLAN_VERSION}"

    def order_text(self, subject: Subject, epoch: int) -> str:
        """Everything that determines the order of an epoch, as text; user code may be called for it."""
        with self.ordering(subject, epoch):
            return subject.order_text(epoch)

    def ordering(self, subject: Subject, epoch: int) -> AbstractContextManager[None]:
        """Return the context in which to ask a subject for the order of an epoch."""
        is_seeded = self.options.seeds_globals and subject.may_draw_order()
        return self.options.order_seeded(epoch) if is_seeded else nullcontext()

    def open_engine(self, work: Callable[[WorkerInfo], Callable[[Any], Any]], **others: Any) -> Engine:
        """Return an engine. Workers start with the first run; importing modules for them begins now.

        Args:
            work: What they do.
            **others: Options of the loader that are others for these workers.
        """
        options = replace(self.options, **others) if others else self.options
        engine = Engine(
            Job(work, options.worker_init, options.seed),
            num_workers=options.num_workers,
            executor=options.limited_executor(),
            options=options.engine_options,
        )
        engine.prepare()
        return engine


class Epochs(ABC):
    """The epochs of a loader.

    Args:
        subject: What is loaded.
        recipe: How.

    Attributes:
        engine: Whose runs they are: whose workers make the batches.
        last_step: How sequences are dealt to the ranks, see `deal`; None: batches are.
    """

    engine: Engine
    last_step: LastStep | None = None

    def __init__(self, subject: Subject, recipe: Recipe) -> None:
        self._subject, self._recipe = subject, recipe
        self._digests: tuple[int, dict[str, str]] | None = None  # of an epoch

    @property
    def who_works(self) -> str:
        """How many workers there are, as text."""
        return str(self.engine.num_workers if self._recipe.options.num_workers else 0)

    def start(self) -> None:
        """Start the workers."""
        self.engine.start()

    def resize(self, num_workers: int) -> None:
        """Change the number of workers, see `Engine.resize`."""
        self.engine.resize(num_workers)

    def close(self) -> None:
        """End the workers."""
        self.engine.close()

    @abstractmethod
    def begin(self, position: LoaderPosition, ranks: Ranks) -> tuple[CloseableRun, Arrivals]:
        """Begin at a position of an epoch, for one of the ranks.

        Raises:
            ResumeError: There is no such position.
        """

    def _run_at(self, position: LoaderPosition, ranks: Ranks) -> EpochRun:
        options = self._recipe.options
        return EpochRun(
            position.epoch,
            position.position,
            position.window,
            ranks.rank,
            ranks.world_size,
            options.remainder,
            options.steps_per_epoch,
            options.agree_every,
            self._subject.num_shards,
        )

    def deal(self, last_step: LastStep, ranks: Ranks) -> None:
        """Deal sequences to the ranks from now on, see `DataLoader.deal`.

        Raises:
            ConfigError: There are several ranks, and the sequences are not known before they are read.
        """
        if ranks.world_size > 1:
            raise ConfigError(
                f"a stream cannot be dealt to {ranks.world_size} ranks: its sequences are not known before it is read",
                where=self._subject.name,
                fix="evaluate on a dataset with a length, such as a list of what the stream yields",
            )
        self.last_step, self._digests = last_step, None

    @abstractmethod
    def num_steps(self, epoch: int, position: int, ranks: Ranks) -> int:
        """Return the number of steps of an epoch on one of the ranks, from a position on."""

    @abstractmethod
    def count(self, epoch: int, ranks: Ranks) -> PlanCounts:
        """Count the sequences of an epoch that are delivered, dropped or cut, over all ranks."""

    @abstractmethod
    def progress(self) -> tuple[int, Progress]:
        """Return the epoch that was started last, and how much of it was planned."""

    def shapes(self, epoch: int, max_batches: int) -> BatchShapes:  # noqa: ARG002
        """Return the shapes of the first batches of an epoch, see `DataLoader.batch_shapes`.

        Raises:
            ConfigError: The shapes are not known before the epoch is read.
        """
        raise no_shapes_error(f"a stream is planned while it is read, also in epoch {epoch}", self._subject.name)

    def digests(self, epoch: int) -> dict[str, str]:
        """Return digests of data, order, batching, ... of an epoch, which a state must match; see `LoaderState`."""
        recipe, subject = self._recipe, self._subject
        if self._digests is None or self._digests[0] != epoch:
            lengths = self.lengths_digest(epoch)
            dealt = "" if self.last_step is None else f"; sequences are dealt, {self.last_step}"
            parts = {
                "data": subject.corpus.digest_text()[:32],
                **({} if lengths is None else {"lengths": lengths}),
                "order": digest_text(recipe.order_text(subject, epoch)),
                "batching": digest_text(recipe.batching_text + dealt),
                "seed": digest_text(str(recipe.options.seed)),
                "user": digest_text(recipe.options.recipe_version or ""),
            }
            self._digests = epoch, parts
        num_shards = subject.num_shards
        # a position is one in the share of a rank, so their number may not change
        return {**({"shards": str(num_shards)} if num_shards > 1 else {}), **self._digests[1]}

    def lengths_digest(self, epoch: int) -> str | None:  # noqa: ARG002
        """Return a digest of the lengths that an epoch is planned by, if the digest of the data does not cover them."""
        return None  # a stream is planned as it is read

    @abstractmethod
    def is_empty(self) -> bool:
        """Tell whether the epoch that has just ended has no sequences."""


class PlannedEpochs(Epochs):
    """Epochs whose order is known: planned here, window by window, and made by workers from tasks."""

    def __init__(self, subject: Subject, recipe: Recipe) -> None:
        super().__init__(subject, recipe)
        self.engine = recipe.open_engine(recipe.work)
        self.plan: EpochPlan | None = None
        self._dealt: Dealt | None = None  # the batching of the plan, if it is that of one rank

    def deal(self, last_step: LastStep, ranks: Ranks) -> None:
        """Deal sequences, see `DataLoader.deal`."""
        if ranks.world_size > 1 and isinstance(self._recipe.options.batching, SampledBatches):
            raise ConfigError(
                f"the batches of a batch_sampler cannot be dealt to {ranks.world_size} ranks: they would be others",
                where=self._subject.name,
                fix="pass sampler= and batch_size= (or batching=) to the loader for an evaluation on several ranks",
            )
        self.last_step, self._digests = last_step, None

    def begin(self, position: LoaderPosition, ranks: Ranks) -> tuple[CloseableRun, Arrivals]:
        """Plan the window of the position, and begin."""
        if self.plan is not None and self.plan.epoch == position.epoch and not self.plan.knows(position.window):
            self.plan = None
        arrivals = PlannedArrivals()
        return self.engine.run(self._tasks(position, ranks, arrivals)), arrivals

    def _tasks(self, position: LoaderPosition, ranks: Ranks, arrivals: PlannedArrivals) -> Iterator[CarriedTask]:
        """Return the tasks of the rest of an epoch on one of the ranks."""
        plan, share = self._plan_for(position.epoch, ranks, position.window)
        run = self._run_at(position, share)
        check_position(run, plan)
        steps = steps_of(run, plan)
        if self._dealt is not None and 0 < plan.count_all().pieces % ranks.world_size <= ranks.rank:
            last = plan.num_batches() - 1 if self.last_step == "repeat" else None
            steps = (step._replace(is_repeat=step.number == last) for step in steps)
        return arrivals.tasks(plan, steps)

    def _plan_for(self, epoch: int, ranks: Ranks, start: tuple[int, int] = (0, 0)) -> tuple[EpochPlan, Ranks]:
        """Return the plan of an epoch, and the ranks that share its batches: one, where sequences are dealt."""
        if self.last_step is None or ranks.world_size == 1:
            return self.plan_of(epoch, start), ranks
        dealt = Dealt(self._recipe.plan.batching, ranks.rank, ranks.world_size, self.last_step)
        return self.plan_of(epoch, start, dealt), Ranks(0, 1, ranks.source)

    def plan_of(self, epoch: int, start: tuple[int, int] = (0, 0), dealt: Dealt | None = None) -> EpochPlan:
        """Return the plan of an epoch, for all ranks or for one; the last plan is kept."""
        if self.plan is None or self.plan.epoch != epoch or self._dealt != dealt:
            order, recipe = self._order_of(epoch), self._recipe.plan
            if dealt is not None:  # in one window, as each could have a last step that is not full
                recipe = replace(recipe, batching=dealt, window_seqs=max(len(order.order), 1))
            self.plan = EpochPlan(order, recipe, start)
            self._dealt = dealt
        return self.plan

    def _order_of(self, epoch: int) -> EpochOrder:
        with self._recipe.ordering(self._subject, epoch):
            return self._subject.start(epoch, self._recipe.needs)

    def lengths_digest(self, epoch: int) -> str | None:
        """Return a digest of the lengths of an epoch, O(N), if the digest of the data does not cover them."""
        needs = self._recipe.needs
        if not needs.lengths or self._subject.corpus.has_fixed_lengths:
            return None
        plan = self.plan
        order = plan.order if plan is not None and plan.epoch == epoch else self._order_of(epoch)
        return order.lengths_digest()

    def num_steps(self, epoch: int, position: int, ranks: Ranks) -> int:
        """Count batches, by planning all windows, once for each epoch.

        Raises:
            NoLengthError: The ranks find out together how many there are.
        """
        if self._recipe.options.agree is not None:
            raise NoLengthError(
                "the number of steps is not known before the epoch: the ranks agree on it step by step",
                where=f"epoch {epoch}",
                fix="count(epoch) tells what this rank has",
            )
        plan, share = self._plan_for(epoch, ranks)
        return len(Steps(plan.num_batches(), share.rank, share.world_size, position, self._recipe.options.remainder))

    def count(self, epoch: int, ranks: Ranks) -> PlanCounts:
        """Count sequences, by planning all windows, once for each epoch."""
        (plan, share), options = self._plan_for(epoch, ranks), self._recipe.options
        counts = plan.count_all()
        if options.remainder != "drop" or options.agree is not None or share.world_size == 1:
            return counts
        num_batches = plan.num_batches()
        first = num_batches - Steps(num_batches, share.rank, share.world_size).num_dropped
        return counts + PlanCounts(remainder=plan.num_pieces_from(first))

    def shapes(self, epoch: int, max_batches: int) -> BatchShapes:
        """Plan the batches, whether or not batching itself needs the lengths."""
        recipe, subject = self._recipe, self._subject
        if not subject.knows_lengths(recipe.needs.data_key):
            raise no_shapes_error("the lengths are not known", subject.name)
        with recipe.ordering(subject, epoch):
            order = subject.start(epoch, replace(recipe.needs, lengths=True))
        return shapes_of(EpochPlan(order, recipe.plan), recipe.plan.batching, max_batches)

    def is_empty(self) -> bool:
        """Tell whether the plan has no sequences."""
        return self.plan is not None and self.plan.num_seqs == 0

    def progress(self) -> tuple[int, Progress]:
        """Return what the plan says."""
        plan = self.plan
        if plan is None:
            return 0, Progress()
        return plan.epoch, Progress(plan.num_planned, str(plan.num_windows), plan.counts)

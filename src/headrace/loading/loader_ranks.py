"""Finds the rank and the world size of a loader when its first iteration begins; they stay the same from then on.

A loader is often made before the training is distributed: before `init_process_group`, or before a trainer starts its
other processes. So nothing is decided in the constructor but what the user said there. Invariant: once a batch was
asked for, the ranks never change; if the environment says something else later, an error names both.

With `check_ranks`, the ranks compare once, before the first batch, whether all of them are about to load the same.
Each rank writes a card, a text of less than 1 KB. `check_ranks` gathers the cards of all ranks, in the order of the
ranks, by whatever the training communicates with; the comparison comes to the same result on each of them, so that all
of them stop, and none waits for another. Invariant: one exchange before an iteration, none later.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.batching import FixedCount
from headrace.errors import ConfigError
from headrace.ranks import LateRanks, Ranks, find_ranks, parts_of_torch, ranks_of_mesh
from headrace.version import __version__

from .epochs import Epochs
from .inputs import Subject
from .iterate import LoaderPosition
from .options import LoaderOptions
from .sampler import SampledBatches

_logger = logging.getLogger("headrace.loading")

_FIXES = {
    "epoch": "let all ranks begin with the same epoch, or load the same state",
    "position": "let all ranks load the same state, or none",
    "data": "give all ranks the same data: the same tags and lengths, in the same order",
    "lengths": "let get_seq_length (or get_seq_len) of the dataset tell the same lengths on all ranks",
    "order": "give the dataset the same seq_ordering, partition_epoch, seeds and filters on all ranks",
    "batching": "give the same batching, batch_order and window_seqs on all ranks",
    "seed": "give the loader the same seed on all ranks",
    "user": "give the same recipe_version on all ranks: their code differs, most likely",
    "version": "install the same version of Headrace on all ranks",
}


class LoaderRanks:
    """The ranks of one loader.

    Args:
        options: Options of the loader.
        subject: What it loads; it may be divided among ranks already.

    Raises:
        ConfigError: The user's options contradict each other about the ranks.
    """

    def __init__(self, options: LoaderOptions, subject: Subject) -> None:
        self._options, self._subject = options, subject
        self._late = LateRanks(self._find, subject.name)
        is_said = options.rank is not None or options.world_size is not None or options.mesh is not None
        if is_said or subject.num_shards > 1:
            self.look_up()

    def look_up(self) -> Ranks:
        """Return the ranks among which batches are split, as far as they are known now.

        Raises:
            ConfigError: Two levels would shard, or ranks would have different numbers of steps unasked, or the
                environment contradicts itself.
        """
        return self._late.look_up()

    def settle(self) -> Ranks:
        """Return the ranks among which batches are split, and fix them.

        Raises:
            ConfigError: As `look_up`, or it was settled before and is different now.
        """
        has_begun = self._late.is_settled
        found = self._late.settle()
        if not has_begun:
            self._say(found)
        return found

    def _find(self) -> Ranks:
        options, subject = self._options, self._subject
        num_shards = subject.num_shards
        if num_shards <= 1:
            ranks = (
                find_ranks(options.rank, options.world_size) if options.mesh is None else ranks_of_mesh(options.mesh)
            )
            if subject.is_stream and ranks.world_size > 1:
                options.check_equal_steps(subject.name)
            return ranks
        if (options.world_size or 1) > 1 or options.mesh is not None:
            said = "mesh" if options.world_size is None else f"world_size={options.world_size}"
            raise ConfigError(
                f"two levels would divide the data: the dataset ({subject.sharded_by}) and the loader ({said})",
                fix="leave out the dataset's sharding: the loader gives all ranks the same number of steps",
            )
        is_even = subject.has_even_shards and isinstance(options.batching, FixedCount | SampledBatches)
        if options.remainder != "keep" and options.steps_per_epoch is None and options.agree is None and not is_even:
            raise ConfigError(
                f"the dataset splits itself into shards ({subject.sharded_by}), so ranks may have different numbers of "
                f'batches, and remainder="{options.remainder}" promises equal steps',
                fix='leave out the dataset\'s sharding, or give remainder="keep", steps_per_epoch= (for streams), or '
                "agree= and agree_every=, by which the ranks agree on the number of steps",
            )
        return Ranks(0, 1, f"the dataset shards itself: {subject.sharded_by}")

    def equal_steps_of(self, ranks: Ranks) -> str | None:
        """Return, as text, which rank this is of several that must have equal numbers of steps; otherwise None."""
        if ranks.world_size > 1:
            return f"rank {ranks.rank} of {ranks.world_size}"
        if self._subject.num_shards > 1 and self._options.remainder != "keep":
            return f"one of {self._subject.num_shards} ranks"
        return None if self._options.agree is None else "one of several ranks"

    def _say(self, ranks: Ranks) -> None:
        """Log what is assumed of detected ranks: a warning if some of them have a process group of their own."""
        if ranks.world_size == 1 or ranks.source != "torch.distributed":
            return
        _logger.log(
            logging.WARNING if parts_of_torch() else logging.INFO,
            "each of the %d ranks of torch.distributed gets batches of its own (this is rank %d); if some of them work "
            "on the same batch (tensor, pipeline or context parallelism), give the loader mesh=, such as "
            'mesh=device_mesh["dp"], or rank= and world_size= of data parallelism',
            ranks.world_size,
            ranks.rank,
        )

    def __str__(self) -> str:
        """Return rank and world size as text, and where they come from."""
        try:
            ranks = self.look_up()
        except ConfigError as error:
            return f"not known yet: {error.what}"
        later = (
            ""
            if self._late.is_settled or ranks.source == "arguments"
            else ", to be looked up again by the first iteration"
        )
        return f"{ranks.rank} of {ranks.world_size} ({ranks.source}{later})"


class RankCheck:
    """Compares what the ranks are about to load, once before the first batch, and once after each `ask_again`.

    Args:
        options: Options of the loader: by which `check_ranks` the texts are gathered, if by any.
        subject: What it loads.
    """

    def __init__(self, options: LoaderOptions, subject: Subject) -> None:
        self._options, self._subject = options, subject
        self._is_done = False

    def ask_again(self) -> None:
        """Compare again before the next iteration: a state was loaded."""
        self._is_done = False

    def compare(self, runs: Epochs, position: LoaderPosition, ranks: Ranks) -> None:
        """Compare with the other ranks, unless that was done.

        Raises:
            ConfigError: See `compare_cards`.
        """
        check_ranks, options = self._options.check_ranks, self._options
        if self._is_done or check_ranks is None:
            return
        digests = runs.digests(position.epoch)
        if self._subject.num_shards > 1:
            for part in ("order", "lengths"):  # each rank has its own
                digests.pop(part, None)
        parts = {
            "version": __version__,
            "epoch": position.epoch,
            "position": position.position,
            "remainder": options.remainder,
            "steps_per_epoch": options.steps_per_epoch,
            "agree_every": options.agree_every,
            **digests,
        }
        compare_cards(check_ranks(fingerprint(parts, ranks)), ranks)
        self._is_done = True


def fingerprint(parts: Mapping[str, Any], ranks: Ranks) -> str:
    """Return a text of what a rank is about to load, to be compared with those of the others.

    Args:
        parts: What must be the same on all ranks, by name.
        ranks: Which rank this is.
    """
    return json.dumps({"rank": ranks.rank, "parts": dict(parts)}, sort_keys=True)


def compare_cards(cards: Sequence[str], ranks: Ranks) -> None:
    """Compare the texts of all ranks, see `fingerprint`.

    Args:
        cards: As they were gathered, in the order of the ranks.
        ranks: Which rank this is; of a dataset that shares itself out, the only one that the loader knows of.

    Raises:
        ConfigError: A part differs, and it is named with the ranks where it does; or there are not as many cards as
            ranks, or not one of each.
    """
    try:
        read = [json.loads(card) for card in cards]
        found, parts_of = [int(card["rank"]) for card in read], [dict(card["parts"]) for card in read]
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"check_ranks returned a text that it did not get from any rank: {error}",
            fix="return the texts of all ranks unchanged, ordered by rank",
        ) from error
    if ranks.world_size > 1 and found != list(range(ranks.world_size)):
        raise ConfigError(
            f"check_ranks returned the texts of ranks {found}, expected 0 to {ranks.world_size - 1}",
            where=f"rank {ranks.rank} of {ranks.world_size} ({ranks.source})",
            fix="give each process its own rank=, the same world_size=, and gather from all of them",
        )
    names = [*_FIXES, *sorted({name for parts in parts_of for name in parts} - set(_FIXES))]
    for name in names:
        values = [json.dumps(parts.get(name), sort_keys=True) for parts in parts_of]
        usual = Counter(values).most_common(1)[0][0] if values else ""  # the first one, if there is a tie
        others = [rank for rank, value in enumerate(values) if value != usual]
        if others:
            raise ConfigError(
                f"the ranks do not agree on {name}: it is {values[others[0]]} on "
                f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, others))}, and {usual} on the others",
                where=f"rank {ranks.rank} of {ranks.world_size} ({ranks.source})",
                fix=_FIXES.get(name, f"give the same {name} on all ranks"),
            )

"""Whether all ranks are about to load the same: compared once, before the first batch, if the user says how to ask.

Each rank writes a card, a text of less than 1 KB. `check_ranks` gathers the cards of all ranks, in the order of the
ranks, by whatever the training communicates with; the comparison comes to the same result on each of them, so that all
of them stop, and none waits for another. Invariant: one exchange before an iteration, none later.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import ConfigError
from headrace.ranks import Ranks

CheckRanks = Callable[[str], Sequence[str]]

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


def fingerprint(parts: Mapping[str, Any], ranks: Ranks) -> str:
    """Return the card of a rank.

    Args:
        parts: What must be the same on all ranks, by name.
        ranks: Which rank this is.
    """
    return json.dumps({"rank": ranks.rank, "parts": dict(parts)}, sort_keys=True)


def compare_cards(cards: Sequence[str], ranks: Ranks) -> None:
    """Compare the cards of all ranks.

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
            f"check_ranks returned what is no card of a rank: {error}",
            fix="return the texts that all ranks gave it, as they were, in the order of the ranks",
        ) from error
    if ranks.world_size > 1 and found != list(range(ranks.world_size)):
        raise ConfigError(
            f"check_ranks returned the cards of the ranks {found}, and there are {ranks.world_size} ranks from 0 on",
            where=f"rank {ranks.rank} of {ranks.world_size} ({ranks.source})",
            fix="give each process its own rank=, the same world_size=, and gather from all of them",
        )
    names = [*_FIXES, *sorted({name for parts in parts_of for name in parts} - set(_FIXES))]
    for name in names:
        values = [json.dumps(parts.get(name), sort_keys=True) for parts in parts_of]
        usual = Counter(values).most_common(1)[0][0] if values else ""  # the first one, if there is a tie
        others = [place for place, value in enumerate(values) if value != usual]
        if others:
            raise ConfigError(
                f"the ranks do not agree on {name}: it is {values[others[0]]} on "
                f"{'rank' if len(others) == 1 else 'ranks'} {', '.join(map(str, others))}, and {usual} on the others",
                where=f"rank {ranks.rank} of {ranks.world_size} ({ranks.source})",
                fix=_FIXES.get(name, f"give the same {name} on all ranks"),
            )

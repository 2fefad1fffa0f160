"""Draws the pictures of the concepts from what the code does, when the site is built: a hook of MkDocs.

Each picture shows one law, and is drawn from runs that obey it: a build fails where a law does not hold.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

import headrace as hr

Row = tuple[str, Sequence["Cell | None"]]
Cell = tuple[str, float]  # text, and its colour as a number from 0 to 1

_CELL = 34  # pixels
_LABEL = 190


def draw(rows: Sequence[Row]) -> str:
    """Return an SVG picture of labelled rows of coloured cells; `None` leaves a place empty."""
    width = _LABEL + _CELL * max(len(cells) for _, cells in rows) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_CELL * len(rows) + 10}" width="{width}"'
        ' font-family="sans-serif" font-size="12" fill="#222"><rect width="100%" height="100%" rx="6" fill="#fff"/>'
    ]
    for row, (label, cells) in enumerate(rows):
        y = 5 + row * _CELL
        parts.append(f'<text x="10" y="{y + 21}">{escape(label)}</text>')
        for column, cell in enumerate(cells):
            if cell is not None:
                x = _LABEL + column * _CELL
                colour = f"hsl({round(cell[1] * 300)},65%,82%)"
                parts.append(
                    f'<rect x="{x + 1}" y="{y + 2}" width="{_CELL - 3}" height="{_CELL - 5}" rx="4" fill="{colour}"/>'
                )
                parts.append(f'<text x="{x + _CELL / 2}" y="{y + 21}" text-anchor="middle">{escape(cell[0])}</text>')
    return "\n".join([*parts, "</svg>"])


def _open_corpus(num_seqs: int = 12, **options: Any) -> hr.Dataset:
    seqs = [{"data": np.full((3, 1), number, np.float32)} for number in range(num_seqs)]
    return hr.SourceDataset(hr.MapSource(seqs), **options)


def _cells(numbers: Sequence[int], num_seqs: int) -> list[Cell]:
    return [(str(number), number / max(num_seqs - 1, 1)) for number in numbers]


def draw_stream() -> str:
    """The same sequences in the same order, with no workers, two workers, and two threads."""
    rows: list[Row] = []
    for label, options in (
        ("no workers", {}),
        ("2 worker processes", {"num_workers": 2}),
        ("3 threads", {"num_workers": 3, "executor": "thread"}),
    ):
        corpus = _open_corpus(16, seq_ordering="random")
        with corpus, hr.DataLoader(corpus, batching=hr.FixedCount(1), seed=1, **options) as loader:
            rows.append((label, _cells([int(batch.corpus_idx[0]) for batch in loader], 16)))
    assert rows[0][1] == rows[1][1] == rows[2][1]
    return draw(rows)


def draw_epochs() -> str:
    """Three sub-epochs are a pass; the next pass has another order."""
    with _open_corpus(seq_ordering="random", partition_epoch=3) as corpus:
        epochs = {epoch: [int(seq.corpus_idx) for seq in corpus.epoch(epoch)] for epoch in range(1, 7)}
    for first in (1, 4):
        assert sorted(epochs[first] + epochs[first + 1] + epochs[first + 2]) == list(range(12))
    return draw([(f"epoch {epoch} (pass {(epoch + 2) // 3})", _cells(found, 12)) for epoch, found in epochs.items()])


def _positions(rank: int, world_size: int, state: dict[str, Any] | None = None) -> list[int]:
    with (
        _open_corpus(seq_ordering="random") as corpus,
        hr.DataLoader(
            corpus, batching=hr.FixedCount(1), seed=1, rank=rank, world_size=world_size, remainder="keep"
        ) as loader,
    ):
        if state is not None:
            loader.load_state_dict(state)
        return [batch.position for batch in loader]


def _in_columns(positions: Sequence[int]) -> list[Cell | None]:
    cells: list[Cell | None] = [None] * 12
    for position, cell in zip(positions, _cells(positions, 12), strict=True):
        cells[position] = cell
    return cells


def draw_ranks() -> str:
    """Which batch of the plan goes to which rank, of two and of three."""
    rows: list[Row] = [("the plan: batches 0 to 11", _in_columns(_positions(0, 1)))]
    for world_size in (2, 3):
        found = [_positions(rank, world_size) for rank in range(world_size)]
        assert sorted(chain(*found)) == list(range(12))
        rows += [(f"rank {rank} of {world_size}", _in_columns(part)) for rank, part in enumerate(found)]
    return draw(rows)


def draw_memory() -> str:
    """Which piece of shared memory each batch lies in: reused when it is dropped, left alone while it is kept."""

    def enlarge(seq: dict[str, Any]) -> dict[str, Any]:  # inside: a hook is no module that a worker could import
        return {"data": np.repeat(seq["data"], 20_000, axis=0)}

    rows: list[Row] = []
    for label, num_kept in (("each batch dropped", 0), ("the last 3 batches kept", 3)):
        corpus = _open_corpus(40)
        slots: dict[int, int] = {}
        kept: list[Any] = []
        found = []
        with corpus, hr.DataLoader(corpus, batching=hr.FixedCount(2), num_workers=1, transform=enlarge) as loader:
            for batch in loader:
                address = batch["data"].__array_interface__["data"][0]
                assert all(address != other["data"].__array_interface__["data"][0] for other in kept)
                found.append(slots.setdefault(address, len(slots)))
                kept = [*kept, batch][-num_kept:] if num_kept else []
                del batch
        assert len(slots) < len(found)
        rows.append((label, _cells(found, max(len(slots), 6))))
    return draw(rows)


def draw_resume() -> str:
    """A run on one rank that is killed, and the rest on two ranks."""
    with (
        _open_corpus(seq_ordering="random") as corpus,
        hr.DataLoader(corpus, batching=hr.FixedCount(1), seed=1) as loader,
    ):
        batches = iter(loader)
        before = [next(batches).position for _ in range(5)]
        state = loader.state_dict()
    after = [_positions(rank, 2, state) for rank in (0, 1)]
    assert sorted(chain(before, *after)) == list(range(12))
    return draw(
        [
            ("1 rank, killed after 5", _in_columns(before)),
            *((f"resumed: rank {rank} of 2", _in_columns(part)) for rank, part in enumerate(after)),
        ]
    )


def draw_randomness() -> str:
    """The draw of a transform for each sequence: by epoch, not by workers or order."""

    def draw_number(seq: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"data": np.full_like(seq["data"], rng.random())}

    rows: list[Row] = []
    for label, epoch, options in (
        ("epoch 1, no workers", 1, {}),
        ("epoch 1, 2 workers", 1, {"num_workers": 2}),
        ("epoch 2, 2 workers", 2, {"num_workers": 2}),
    ):
        corpus = _open_corpus(seq_ordering="random")
        draws = {}
        with (
            corpus,
            hr.DataLoader(corpus, batching=hr.FixedCount(1), seed=1, transform=draw_number, **options) as loader,
        ):
            for part in loader.epochs(first=epoch, last=epoch):
                for batch in part:
                    draws[int(batch.corpus_idx[0])] = float(batch["data"][0, 0, 0])
        rows.append((label, [(f"{draws[number]:.2f}", draws[number]) for number in sorted(draws)]))
    assert rows[0][1] == rows[1][1] != rows[2][1]
    return draw([("sequence", _cells(range(12), 12)), *rows])


PICTURES: dict[str, Callable[[], str]] = {
    "stream": draw_stream,
    "epochs": draw_epochs,
    "ranks": draw_ranks,
    "memory": draw_memory,
    "resume": draw_resume,
    "randomness": draw_randomness,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures to the site; none is on disk."""
    from mkdocs.structure.files import File

    before = os.environ.get("HEADRACE_CACHE")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HEADRACE_CACHE"] = str(Path(folder))
        try:
            for name, picture in PICTURES.items():
                files.append(File.generated(config, f"pictures/laws/{name}.svg", content=picture()))
        finally:
            if before is None:
                del os.environ["HEADRACE_CACHE"]
            else:
                os.environ["HEADRACE_CACHE"] = before
    return files

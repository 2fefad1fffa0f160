"""`plot(loader)`: the lengths of an epoch, the padding of its batches, how full they are, and how even ranks are."""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np

from headrace.errors import ConfigError

_BLUE, _RED, _GREY = "#3b6ea8", "#c8553d", "#8a8a8a"
_MAX_STEPS = 200  # of ranks, so that each can be seen


def plot(loader: Any, epoch: int | None = None, world_size: int | None = None) -> Any:
    """Plot what the batches of an epoch will be like. Nothing is read, only planned.

    Four panels: the lengths of the sequences; the padding of the batches; how full they are, as a share of the largest;
    and the padded frames of each step, from the rank with the least to the one with the most, which the others wait
    for.

    Args:
        loader: A `DataLoader` whose sequences have known lengths.
        epoch: Which epoch; None: the next.
        world_size: For how many ranks; None: for the loader's own, or 4 if that is a single one.

    Returns:
        A `matplotlib.figure.Figure`: notebooks show it, `figure.savefig("plan.svg")` writes it.

    Raises:
        ConfigError: The lengths are not known, or matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("plot needs matplotlib", fix="pip install 'headrace[report]'")
    from matplotlib.figure import Figure

    class PlanFigure(Figure):  # type: ignore[misc, unused-ignore]
        """Shows itself in a notebook where pyplot was not imported, too."""

        def _repr_png_(self) -> bytes:
            file = io.BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    shapes = loader.batch_shapes(epoch)
    if not len(shapes.num_seqs):
        raise ConfigError(f"epoch {shapes.epoch} has no batch to plot", fix="see loader.explain()")
    num_ranks = world_size or (loader.ranks.world_size if loader.ranks.world_size > 1 else 4)
    figure = PlanFigure(figsize=(10, 6), layout="constrained")
    axes = figure.subplots(2, 2)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    _plot_lengths(axes[0, 0], shapes)
    _plot_padding(axes[0, 1], shapes)
    _plot_fill(axes[1, 0], shapes)
    _plot_ranks(axes[1, 1], shapes.by_rank(num_ranks), num_ranks)
    figure.suptitle(f"Epoch {shapes.epoch}: {len(shapes.lengths):,} sequences in {len(shapes.num_seqs):,} batches")
    return figure


def _plot_lengths(ax: Any, shapes: Any) -> None:
    ax.hist(shapes.lengths, bins=40, color=_BLUE)
    median = float(np.median(shapes.lengths))
    ax.axvline(median, color=_GREY, linestyle="--", label=f"median {median:,.0f}")
    ax.set(title="Lengths", xlabel="frames of a sequence", ylabel="sequences")
    ax.legend(frameon=False)


def _plot_padding(ax: Any, shapes: Any) -> None:
    shares = 1 - shapes.frames / np.maximum(shapes.padded_frames, 1)
    whole = 1 - shapes.frames.sum() / max(int(shapes.padded_frames.sum()), 1)
    ax.hist(100 * shares, bins=40, color=_BLUE)
    ax.axvline(100 * whole, color=_RED, linestyle="--", label=f"all together {whole:.1%}")
    ax.set(title="Padding", xlabel="padding of a batch, %", ylabel="batches")
    ax.legend(frameon=False)


def _plot_fill(ax: Any, shapes: Any) -> None:
    largest = max(int(shapes.padded_frames.max()), 1)
    numbers = np.arange(len(shapes.frames))
    padded, frames = (100 * column / largest for column in (shapes.padded_frames, shapes.frames))
    ax.fill_between(numbers, padded, color=_GREY, alpha=0.5, label="with padding", step="mid")
    ax.fill_between(numbers, frames, color=_BLUE, label="frames", step="mid")
    ax.set(title="How full batches are", xlabel="batch", ylabel="% of the largest", ylim=(0, 105))
    ax.legend(loc="lower right")


def _plot_ranks(ax: Any, frames: Any, num_ranks: int) -> None:
    shown = frames[:_MAX_STEPS]
    ax.set(title=f"Steps of {num_ranks} ranks", xlabel="step", ylabel="frames, with padding")
    if not len(shown):
        ax.text(0.5, 0.5, "fewer batches than ranks", transform=ax.transAxes, ha="center")
        return
    steps = np.arange(len(shown))
    waits = 1 - frames.mean() / max(float(frames.max(axis=1).mean()), 1)
    least, most = shown.min(axis=1), shown.max(axis=1)
    ax.fill_between(steps, least, most, color=_BLUE, alpha=0.4, step="mid", label="least to most")
    ax.plot(steps, shown.mean(axis=1), color=_RED, linewidth=1, label=f"mean; ranks wait {waits:.1%}")
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, loc="lower right")

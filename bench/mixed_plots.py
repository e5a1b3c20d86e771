"""Plots of replays: who waited how long, and what the arena held."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.replay import Replay

NAMES: Final = ("FIFO, blocks of 256", "halogen")
_COLOURS: Final = ("tab:gray", "tab:blue")
_MOST_POINTS: Final = 300  # of a line


def write_plots(folder: Path, found: Mapping[str, tuple[Replay, Replay]]) -> None:
    """Writes one SVG for each mix: the plain batcher's replay beside ours."""
    library: Any = importlib.import_module("matplotlib")
    library.use("svg")
    library.rcParams["svg.hashsalt"] = "halogen"  # the same picture has the same bytes
    plots: Any = importlib.import_module("matplotlib.pyplot")
    for name, replays in found.items():
        picture, (short, long, arena) = plots.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
        for replay, label, colour in zip(replays, NAMES, _COLOURS, strict=True):
            _share(short, [fate.last_s for fate in replay.fates if not fate.is_long], label, colour)
            _share(long, [fate.first_s for fate in replay.fates if fate.is_long], label, colour)
            _filled(arena, replay, label, colour)
        _say(short, "short requests: all of the answer", "s after arrival", "share of requests")
        _say(long, "long requests: first token", "s after arrival", "share of requests")
        _say(arena, "tokens stored (line) and set aside (dots)", "s", "tokens")
        picture.savefig(folder / f"mixed-{name}.svg", metadata={"Date": None})
        plots.close(picture)


def _share(axes: Any, seconds: list[float], label: str, colour: str) -> None:
    seconds.sort()
    shares = [(place + 1) / len(seconds) for place in range(len(seconds))]
    axes.step(seconds, shares, where="post", label=label, color=colour)


def _filled(axes: Any, replay: Replay, label: str, colour: str) -> None:
    fills = replay.fills[:: 1 + len(replay.fills) // _MOST_POINTS]
    at_s = [fill.at_s for fill in fills]
    axes.plot(at_s, [fill.stored for fill in fills], label=label, color=colour, linewidth=1)
    axes.plot(at_s, [fill.lent for fill in fills], color=colour, linewidth=0.8, linestyle=":")


def _say(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)

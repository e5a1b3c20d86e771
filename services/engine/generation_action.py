"""What `Generations` may ask of those who act for it."""

from __future__ import annotations

from typing import NamedTuple

from services.engine.generation import Generation


class StartLoad(NamedTuple):
    """Begin to load it; `Generations.stopped` is told when that has come to an end."""

    generation: Generation


class Proceed(NamedTuple):
    """There is room for its model now: build it."""

    generation: Generation


class CancelLoad(NamedTuple):
    """Call its load off."""

    generation: Generation


class EndStreams(NamedTuple):
    """End what runs on it: its drain has lasted too long, and others wait for its memory."""

    generation: Generation


class Dispose(NamedTuple):
    """Let it go; comes once."""

    generation: Generation


Action = StartLoad | Proceed | CancelLoad | EndStreams | Dispose

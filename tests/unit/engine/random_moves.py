"""What may happen to an engine, as hypothesis draws it."""

from __future__ import annotations

import dataclasses
from typing import Final

from hypothesis import strategies as st


@dataclasses.dataclass(frozen=True)
class Setting:
    """What kind of engine it is.

    Attributes:
        has_thread: Whether its steps come by themselves, or by the hand of the test in one certain order.
        blocks: Of the largest model, that its arena has.
        copies: Whether copying is dear or cheap beside computing.
    """

    has_thread: bool
    blocks: int
    chunk_tokens: int
    max_batch: int
    swap_blocks: int
    is_copying_cheap: bool


@dataclasses.dataclass(frozen=True)
class Ask:
    """Somebody asks.

    Attributes:
        slot: Which of the models.
        is_alike: Whether it begins as others do, and shares pages with them.
        stops: Whether some tokens end its answer.
        patience: Steps, or milliseconds, until its deadline.
        promise: Tokens beyond its prompt that its ticket promises; None for what is expected of the model.
    """

    slot: int
    prompt: int
    new: int
    is_alike: bool = False
    stops: bool = False
    samples: bool = False
    is_background: bool = False
    patience: int | None = None
    promise: int | None = 1


@dataclasses.dataclass(frozen=True)
class Leave:
    """One of those who wait for an answer goes."""

    which: int


@dataclasses.dataclass(frozen=True)
class Pass:
    """Some steps are computed."""

    steps: int


@dataclasses.dataclass(frozen=True)
class Fail:
    """The next step of a model fails, or one row of it."""

    slot: int
    is_whole: bool


@dataclasses.dataclass(frozen=True)
class Replace:
    """A model makes way for the next generation; those who wait for its answers may get them to the end, or not."""

    slot: int
    is_patient: bool


@dataclasses.dataclass(frozen=True)
class Restart:
    """The engine stops, whatever is under way, and another one starts."""


Move = Ask | Leave | Pass | Fail | Replace | Restart

SLOTS: Final = 3
_slots = st.integers(0, SLOTS - 1)
_rarely = st.sampled_from((False, False, False, True))

settings_of_engines = st.builds(
    Setting,
    has_thread=st.booleans(),
    blocks=st.integers(2, 8),
    chunk_tokens=st.integers(3, 64),
    max_batch=st.integers(1, 8),
    swap_blocks=st.sampled_from((0, 4, 100)),
    is_copying_cheap=st.booleans(),
)
_asks = st.builds(
    Ask,
    slot=_slots,
    prompt=st.integers(1, 60),
    new=st.integers(1, 60),
    is_alike=st.booleans(),
    stops=_rarely,
    samples=st.booleans(),
    is_background=_rarely,
    patience=st.none() | st.none() | st.integers(0, 40),
    promise=st.sampled_from((1, 1, 8, None)),
)
_BUILDS: Final = {
    Ask: _asks,
    Pass: st.builds(Pass, st.integers(1, 12)),
    Leave: st.builds(Leave, st.integers(0, 7)),
    Fail: st.builds(Fail, _slots, st.booleans()),
    Replace: st.builds(Replace, _slots, st.booleans()),
    Restart: st.just(Restart()),
}
_WEIGHTS: Final = {Ask: 50, Pass: 20, Leave: 3, Fail: 1, Replace: 2, Restart: 1}
_kinds = st.sampled_from([kind for kind, weight in _WEIGHTS.items() for _ in range(weight)])
_few = st.lists(_kinds.flatmap(_BUILDS.__getitem__), min_size=1)
moves = st.lists(_few, min_size=1).map(lambda parts: [move for part in parts for move in part])  # about 36

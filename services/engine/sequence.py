"""One request on its way through the engine: its tokens, its blocks, how far it has been computed."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Sequence as Ordered
from typing import Final

import numpy as np
import numpy.typing as npt

from services.common.ids import RequestId
from services.common.kv import BLOCK_TOKENS, worst_case_blocks
from services.engine.reservation import Reservation


class Phase(enum.Enum):
    WAITING = "waiting"  # it has memory, and waits for its first step, or its first after it was set back
    PREFILL = "prefill"  # some is
    DECODE = "decode"  # all is: one new token per step
    PREEMPTED = "preempted"  # it holds no memory of the arena, and waits for what it may need
    ENDED = "ended"


_MOVES: Final = {
    Phase.WAITING: {Phase.PREFILL, Phase.DECODE, Phase.PREEMPTED, Phase.ENDED},
    Phase.PREFILL: {Phase.PREFILL, Phase.DECODE, Phase.PREEMPTED, Phase.ENDED},
    Phase.DECODE: {Phase.DECODE, Phase.PREEMPTED, Phase.ENDED},
    Phase.PREEMPTED: {Phase.WAITING, Phase.ENDED},
    Phase.ENDED: set[Phase](),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen; every value is in its range (see validation.py)."""

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    logprobs: bool = False  # whether each token's is told


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What is asked of the engine.

    Attributes:
        deadline: time.monotonic() after which nobody wants the answer.
        cache_salt: It shares pages of keys and values with its tenant's requests of the same salt; with none when None.
        tenant: Whose request it is; empty where callers are not asked who they are.
    """

    id: RequestId
    prompt: Ordered[int]
    sampling: Sampling
    deadline: float = math.inf
    cache_salt: bytes | None = None
    tenant: str = ""

    @property
    def worst_case_blocks(self) -> int:
        return worst_case_blocks(len(self.prompt), self.sampling.max_tokens, BLOCK_TOKENS)


class Sequence:
    """The step thread's view of a request.

    Tokens 0 .. length - 1 are known; keys and values of 0 .. computed - 1 are stored in the blocks of `table`.
    Invariant: computed < length, and the blocks taken cover exactly `computed` tokens.

    Args:
        reservation: Its first blocks, which may grow; None for one that waits for memory.
        prefix: Blocks that hold the keys and values of its first tokens already, not of all; they are only read.

    Attributes:
        has_begun: Something of it was computed at some time.
    """

    def __init__(
        self, request: TokenRequest, reservation: Reservation | None = None, prefix: Ordered[int] = ()
    ) -> None:
        self.request = request
        self.phase = Phase.PREEMPTED
        self.has_begun = False
        self.computed = 0
        self.length = len(request.prompt)
        self._reservation: Reservation | None = None
        self._tokens = np.empty(self.length + request.sampling.max_tokens, np.int32)
        self._tokens[: self.length] = request.prompt
        self._table = np.empty(request.worst_case_blocks, np.int32)
        self._blocks = 0
        if reservation is not None:
            self.come_back(reservation, prefix)

    @property
    def generated(self) -> int:
        return self.length - len(self.request.prompt)

    @property
    def room(self) -> int:
        """How many more tokens its blocks can take; any thread may ask, and hears of no more than there is."""
        reservation = self._reservation
        return (
            0
            if reservation is None
            else ((self._blocks + reservation.untaken) * BLOCK_TOKENS - self.computed)
        )

    @property
    def table(self) -> npt.NDArray[np.int32]:
        """Ids of its blocks, in the order of its tokens."""
        return self._table[: self._blocks]

    @property
    def known(self) -> npt.NDArray[np.int32]:
        """Its prompt, and the answer so far."""
        return self._tokens[: self.length]

    @property
    def stored(self) -> npt.NDArray[np.int32]:
        """The tokens whose keys and values are stored, as far as any thread can see."""
        return self._tokens[: self.computed]

    def pending(self, count: int) -> npt.NDArray[np.int32]:
        """The next `count` tokens whose keys and values are to be stored."""
        return self._tokens[self.computed : self.computed + count]

    def cover(self, count: int) -> None:
        """Takes the blocks that the next `count` tokens, at most `room`, will fill."""
        needed = -(-(self.computed + count) // BLOCK_TOKENS)
        while self._blocks < needed:
            assert self._reservation is not None
            self._table[self._blocks] = self._reservation.take()
            self._blocks += 1

    def set_back(self) -> None:
        """Lets go of its blocks; what was known stays known."""
        self.move(Phase.PREEMPTED)
        self._reservation = None

    def come_back(self, reservation: Reservation, prefix: Ordered[int] = ()) -> None:
        """Begins anew from what `prefix` holds, with all of its tokens so far for a prompt."""
        self._reservation = reservation
        self._blocks = len(prefix)
        self._table[: self._blocks] = prefix
        self.computed = self._blocks * BLOCK_TOKENS
        self.move(Phase.WAITING)

    def restore(self, computed: int) -> npt.NDArray[np.int32]:
        """Takes blocks for what was stored once, up to `computed` tokens; the ids of those that are to be filled."""
        before = self._blocks
        self.cover(computed - self.computed)
        self.computed = max(self.computed, computed)
        return self._table[before : self._blocks]

    def advance(self, count: int) -> bool:
        """Notes that the next `count` tokens are computed; tells whether a new token is due."""
        self.has_begun = True
        self.computed += count
        due = self.computed == self.length
        self.move(Phase.DECODE if due else Phase.PREFILL)
        return due

    def append(self, token: int) -> None:
        self._tokens[self.length] = token
        self.length += 1

    def move(self, phase: Phase) -> None:
        """Raises ValueError on a move that the table does not know."""
        if phase not in _MOVES[self.phase]:
            raise ValueError(f"request {self.request.id}: no way from {self.phase} to {phase}")
        self.phase = phase

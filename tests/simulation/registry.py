"""A registry whose past can still be seen, as by watchers that lag behind."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from services.common.registry.record import Record
from services.common.registry.store import Delete, Entry, Put, Unchanged

R = TypeVar("R", bound=Record)


class SimRegistry:
    """Transactions on keys, and the state after each of them.

    Attributes:
        states: What stood after every transaction that changed anything; the first is empty.
    """

    def __init__(self) -> None:
        self.states: list[Mapping[str, Entry]] = [{}]

    @property
    def now(self) -> Mapping[str, Entry]:
        return self.states[-1]

    def under(self, prefix: str) -> tuple[Entry, ...]:
        return tuple(entry for key, entry in sorted(self.now.items()) if key.startswith(prefix))

    def commit(self, conditions: Iterable[Unchanged], writes: Sequence[Put | Delete]) -> bool:
        """Applies all writes if all conditions hold, else nothing; tells which."""
        standing = self.now
        for key, expected in conditions:
            if expected != (standing[key].mod_revision if key in standing else 0):
                return False
        assert len(writes) == len({write.key for write in writes})
        written = dict(standing)
        for write in writes:
            if isinstance(write, Delete):
                written.pop(write.key, None)
            else:
                written[write.key] = Entry(write.key, write.value, len(self.states))
        self.states.append(written)
        return True


class SimView:
    """One watcher of one prefix: it sees what stood at some moment, and never an earlier one again."""

    def __init__(self, registry: SimRegistry, prefix: str) -> None:
        self._registry = registry
        self._prefix = prefix
        self._seen = 0

    def move_on(self, chance: random.Random) -> None:
        """To now, or any moment since the last."""
        now = len(self._registry.states) - 1
        self._seen = chance.choice([now, chance.randint(self._seen, now)])

    def catch_up(self) -> None:
        self._seen = len(self._registry.states) - 1

    def records(self, kind: type[R]) -> dict[str, R]:
        state = self._registry.states[self._seen]
        return {k: kind.decode(e.value) for k, e in state.items() if k.startswith(self._prefix)}

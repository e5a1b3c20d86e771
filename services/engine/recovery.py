"""What an engine begins with, and keeps for its next start."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Self

import structlog

from services.common.ids import ProcessId
from services.common.pulse import Pulse
from services.common.registry.records import Serving
from services.common.stoppable import in_thread
from services.engine.last_commit import LastCommitFile
from services.engine.recovery_config import RecoveryConfig

NOTHING: Final[Mapping[str, Serving]] = MappingProxyType({})

log = structlog.get_logger(component="state_machine")


class Recovery:
    """Remembers what gateways use of this engine, if it is to start from that.

    Args:
        file: Where; None: nowhere.

    Attributes:
        remembered: serving/ key to record, as it was last; empty before `read`.
    """

    def __init__(self, file: LastCommitFile | None) -> None:
        self.remembered = NOTHING
        self._file = file

    @classmethod
    def of(cls, config: RecoveryConfig, engine: ProcessId, environment: str) -> Self:
        """As the settings have it."""
        is_on = config.start_from_cache == "last_committed"
        return cls(LastCommitFile.of(config.state_dir, engine, environment) if is_on else None)

    async def read(self) -> None:
        """Reads what an earlier start has left."""
        if self._file:
            self.remembered = await in_thread(self._file.read)

    async def follow(self, news: Pulse, applied: Callable[[], Mapping[str, Serving]]) -> None:
        """Writes down what is applied whenever that has changed, for ever. What was remembered and is not yet applied stays."""
        async with contextlib.aclosing(news.beats()) as beats:
            async for _ in beats:
                if self._file and (now := {**self.remembered, **applied()}) != self.remembered:
                    await self._write(self._file, now)
                    self.remembered = now

    async def _write(self, file: LastCommitFile, serving: Mapping[str, Serving]) -> None:
        try:
            await in_thread(lambda: file.write(serving))
        except OSError as failure:
            log.warning("last_commit_unwritten", path=str(file.path), error=str(failure))

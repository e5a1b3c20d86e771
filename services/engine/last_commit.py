"""What an engine remembers of the registry for its next start: what gateways used of it."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

import structlog

from services.common.checkpoint.durable import sync
from services.common.ids import ProcessId
from services.common.registry.record import Record
from services.common.registry.records import Serving

log = structlog.get_logger(component="state_machine")


class LastCommit(Record):
    """The file's content.

    Attributes:
        environment: The prefix of the registry's keys: one registry's facts say nothing of another's.
        serving: serving/ key to record.
    """

    environment: str
    serving: dict[str, Serving]


class LastCommitFile(NamedTuple):
    """Where that lies.

    Attributes:
        path: Its directory is made when it is first written.
        environment: The one to read it for.
    """

    path: Path
    environment: str

    @classmethod
    def of(cls, state_dir: Path, engine: ProcessId, environment: str) -> Self:
        """One engine's own."""
        return cls(state_dir / f"{urllib.parse.quote(engine, safe='')}.json", environment)

    def read(self) -> Mapping[str, Serving]:
        """What was written last; nothing where there is none, or it is damaged, or another environment's."""
        try:
            last = LastCommit.decode(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as fault:
            log.warning("last_commit_unreadable", path=str(self.path), error=str(fault))
            return {}
        if last.environment != self.environment:
            log.warning("last_commit_of_another_environment", path=str(self.path), prefix=last.environment)
            return {}
        return last.serving

    def write(self, serving: Mapping[str, Serving]) -> None:
        """Whole or not at all, also through a crash.

        Raises:
            OSError: It cannot be written there.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".new")
        unfinished.write_bytes(LastCommit(environment=self.environment, serving=dict(serving)).encode())
        sync(unfinished)
        unfinished.replace(self.path)
        sync(self.path.parent)

"""Whether what a process knows of the registry is current."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import structlog

from services.common.pulse import Pulse

log = structlog.get_logger()


class RegistryContact:
    """Told by those who talk to the registry: what they cannot write, and what it has lost.

    What is stale is served on. Every loss of contact is one line in the log, its end another.
    """

    def __init__(self) -> None:
        self._away = ""
        self._astray: dict[str, str] = {}  # key to what has become of it, in order
        self._pulse = Pulse()

    @property
    def stale(self) -> str:
        """Why it may be out of date, in a few words; empty while it is current."""
        if self._away or not self._astray:
            return self._away
        (first, what), *more = self._astray.items()
        return f"{first} {what}" + (f", and {len(more)} more have" if more else "")

    def lost(self, why: str) -> None:
        """The registry does not answer, or has given this process up."""
        if not self._away:
            log.warning("registry_lost", why=why)
        self._away = why
        self._pulse.beat()

    def regained(self) -> None:
        """It has this process's record again."""
        if self._away:
            log.info("registry_regained")
        self._away = ""
        self._pulse.beat()

    def vanished(self, key: str) -> None:
        """What was said is not there any more, although nobody may take it back."""
        self._note(key, "registry_record_vanished", "has vanished from the registry")

    def gone_back(self, key: str) -> None:
        """An older revision is there than was said before: the registry comes from a backup."""
        self._note(key, "registry_record_gone_back", "has gone back to an older revision in the registry")

    def there(self, key: str) -> None:
        """The registry says something under that key."""
        if key in self._astray:
            del self._astray[key]
            self._pulse.beat()

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields after changes; several may come as one. Never ends by itself."""
        return self._pulse.beats()

    def _note(self, key: str, event: str, what: str) -> None:
        if self._astray.get(key) != what:
            log.warning(event, key=key)
        self._astray[key] = what
        self._pulse.beat()

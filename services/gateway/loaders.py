"""Where loaders are, as the registry tells."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from services.common.registry.records import LoaderRecord
from services.common.registry.view import View


class Loaders:
    """The loaders that there are, in the order in which to ask them.

    Args:
        view: Mirror of loaders/.
    """

    def __init__(self, view: View[LoaderRecord]) -> None:
        self._view = view
        self._preferred = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of each, the preferred one first, the others by name."""
        found = [record.address for _, record in sorted(self._view.records.items())]
        return tuple(sorted(found, key=lambda address: address != self._preferred))

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields once they are known, and after every change."""
        return self._view.changes()

    def prefer(self, address: str) -> None:
        """This one has answered: it comes first from now on."""
        self._preferred = address

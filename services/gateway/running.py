"""The requests that are running, by id."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from services.common.errors import AlreadyExists, InvalidRequest
from services.common.ids import RequestId


class Running:
    """Keeps request ids unique while their requests run, and finds a request to abort it."""

    def __init__(self) -> None:
        self._abort_by_id: dict[RequestId, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._abort_by_id)

    @contextlib.contextmanager
    def admit(self, request_id: RequestId, abort: Callable[[], None]) -> Iterator[None]:
        """Holds the id for the scope; `abort` must not block and may be called several times.

        Raises:
            AlreadyExists: A request of that id is running.
        """
        if request_id in self._abort_by_id:
            raise AlreadyExists(
                f"request_id {request_id!r} is running; choose another, or leave it empty",
                reason="REQUEST_ID_IN_USE",
            )
        self._abort_by_id[request_id] = abort
        try:
            yield
        finally:
            del self._abort_by_id[request_id]

    def abort(self, request_id: RequestId) -> bool:
        """Ends that one request; tells whether it was running.

        Raises:
            InvalidRequest: The id is empty.
        """
        if not request_id:
            raise InvalidRequest(
                "request_id is empty; name the request to abort", reason="REQUEST_ID_INVALID"
            )
        abort = self._abort_by_id.get(request_id)
        if abort is not None:
            abort()
        return abort is not None

"""The requests that are running, by id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from services.common.errors import AlreadyExists, InvalidRequest, Overloaded
from services.common.ids import RequestId
from services.common.recent_ids import RecentIds

MOST_REMEMBERED: Final = 4_096
EARLY_S: Final = 1.0  # how far an abort may overtake its request
RETRY_AFTER_S: Final = 1.0
LATE_S: Final = 60.0  # how far it may come behind its end
_Key = tuple[str, RequestId]  # tenant and id


class Running:
    """Keeps a tenant's request ids unique while their requests run, and finds a request to abort it.

    Tenants know nothing of each other: two may use one id, and none ends another's request.

    An abort may overtake its request, so one that finds nothing is remembered for a while, and the request ends
    as it begins. One that comes too late is not: its id may be used again at once.

    Args:
        most: How many may run at once.
        clock: Monotonic seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._abort_by_id: dict[_Key, Callable[[], None]] = {}
        self._ended: RecentIds[_Key] = RecentIds(MOST_REMEMBERED, LATE_S)
        self._aborted_early: RecentIds[_Key] = RecentIds(MOST_REMEMBERED, EARLY_S)

    def __len__(self) -> int:
        return len(self._abort_by_id)

    @contextlib.contextmanager
    def admit(self, request_id: RequestId, abort: Callable[[], None], tenant: str = "") -> Iterator[None]:
        """Holds the id for the scope; `abort` must not block and may be called several times.

        Raises:
            Overloaded: As many run as may.
            AlreadyExists: A request of that id is running.
        """
        if len(self._abort_by_id) >= self._most:
            raise Overloaded(
                f"the gateway has {self._most} requests under way, as many as it takes at once "
                "(--max-concurrent-requests); try again",
                reason="TOO_MANY_REQUESTS",
                retry_after_s=RETRY_AFTER_S,
            )
        key = (tenant, request_id)
        if key in self._abort_by_id:
            raise AlreadyExists(
                f"request_id {request_id!r} is running; choose another, or leave it empty",
                reason="REQUEST_ID_IN_USE",
            )
        self._abort_by_id[key] = abort
        if self._aborted_early.take(key, self._clock()):
            abort()
        try:
            yield
        finally:
            del self._abort_by_id[key]
            self._ended.add(key, self._clock())

    def abort(self, request_id: RequestId, tenant: str = "") -> bool:
        """Ends that one request of the tenant; tells whether it was running.

        Raises:
            InvalidRequest: The id is empty.
        """
        if not request_id:
            raise InvalidRequest(
                "request_id is empty; name the request to abort", reason="REQUEST_ID_INVALID"
            )
        key = (tenant, request_id)
        abort = self._abort_by_id.get(key)
        if abort is not None:
            abort()
        elif not self._ended.holds(key, self._clock()):
            self._aborted_early.add(key, self._clock())
        return abort is not None

"""The way into a server: every call shows who makes it, before anything else is done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from services.common.auth.access import Access
from services.common.auth.bearer import token_in
from services.common.auth.permissions import is_open
from services.common.auth.principal import calling


class Entrance:
    """Lets calls in.

    Args:
        access: Who may call what; None lets everybody do everything.
    """

    def __init__(self, access: Access | None) -> None:
        self._access = access

    @contextlib.contextmanager
    def entered(self, method: str, call: grpc.aio.ServicerContext[Any, Any]) -> Iterator[None]:
        """The scope of a call that was let in, in which its `caller` is known.

        Raises:
            Unauthenticated: Nothing, or nothing that is known here, was shown.
            PermissionDenied: What was shown is for another role.
        """
        if self._access is None or is_open(method):
            yield
            return
        principal = self._access.admit(
            method, token_in(call.invocation_metadata() or ()), lambda: _uris(call)
        )
        with calling(principal):
            yield


def _uris(call: grpc.aio.ServicerContext[Any, Any]) -> Iterator[str]:
    """Those among the alternative names of the certificate that the caller showed; none where it showed none."""
    for uri in call.auth_context().get("peer_uri", ()):
        yield uri.decode(errors="replace")

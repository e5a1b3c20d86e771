"""The way into a server: every call shows who makes it, before anything else is done with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from services.common.auth.access import Access
from services.common.auth.bearer import token_in
from services.common.auth.permissions import is_open
from services.common.auth.principal import Principal, caller, calling
from services.common.auth.role import Role
from services.common.errors import PermissionDenied, Unauthenticated
from services.common.rpc.refusals import Refusals


class Entrance:
    """Lets calls in.

    Args:
        access: Who may call what; None lets everybody do everything.

    Attributes:
        refusals: Of those that were not let in.
    """

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self.refusals = Refusals()

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
        with calling(self._admitted(self._access, method, call)):
            yield

    def ask_again(self, method: str, call: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Asks the caller of a call that was let in once more: credentials are withdrawn while calls go on.

        Processes of ours are not: a token of theirs that is replaced must not disturb what they have begun.

        Raises:
            Unauthenticated: What was shown is not known here any more.
            PermissionDenied: It is for another role now.
        """
        principal = caller()
        if self._access is not None and principal is not None and principal.role is not Role.SYSTEM:
            self._admitted(self._access, method, call)

    def _admitted(self, access: Access, method: str, call: grpc.aio.ServicerContext[Any, Any]) -> Principal:
        token = token_in(call.invocation_metadata() or ())
        try:
            return access.admit(method, token, lambda: _uris(call))
        except (Unauthenticated, PermissionDenied) as refusal:
            self.refusals.note(refusal.reason, method, call.peer())
            raise


def _uris(call: grpc.aio.ServicerContext[Any, Any]) -> Iterator[str]:
    """Those among the alternative names of the certificate that the caller showed; none where it showed none."""
    for uri in call.auth_context().get("peer_uri", ()):
        yield uri.decode(errors="replace")

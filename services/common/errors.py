"""The one tree of errors.

::

    HalogenError
    ├── InvalidRequest          can never work as asked
    ├── NotFound                no such model, artifact or file
    ├── AlreadyExists           the request_id is in use
    ├── Conflict                a compare-and-set was lost
    ├── PreconditionFailed      not in this state: revision retired, artifact not ready
    ├── Overloaded              no room now; come back after retry_after_s
    ├── Unavailable             nobody there to do it; come back after retry_after_s
    ├── DeadlinePassed          the caller's own deadline
    ├── Cancelled               the caller left
    ├── Unauthenticated         no credential
    ├── PermissionDenied        the credential is for another role
    ├── Unsupported             not in this build or configuration
    ├── CorruptData             bytes that do not match their digest
    └── InternalError           a fault of ours

Every error carries a reason (UPPER_SNAKE, stable, for programs), a message (for people, says what to do
next) and metadata. `services.common.rpc.status` maps the tree to gRPC status codes, in one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class HalogenError(Exception):
    """A failure that a caller is meant to see.

    Attributes:
        message: One sentence or two for people: what is wrong and what to do. Never a path or foreign data.
        reason: Stable name for programs.
        metadata: Facts for programs, for example the limit that was passed.
        retry_after_s: When trying again may help; None when it will not.
    """

    default_reason: ClassVar[str] = "INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        metadata: Mapping[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or self.default_reason
        self.metadata = dict(metadata or {})
        self.retry_after_s = retry_after_s


class InvalidRequest(HalogenError):
    """What was asked can never work."""

    default_reason = "INVALID_REQUEST"


class NotFound(HalogenError):
    """There is no such model, artifact or file."""

    default_reason = "NOT_FOUND"


class AlreadyExists(HalogenError):
    """The name is taken."""

    default_reason = "ALREADY_EXISTS"


class Conflict(HalogenError):
    """Somebody else changed the record first."""

    default_reason = "CONFLICT"


class PreconditionFailed(HalogenError):
    """Right in another state of the system, not in this one."""

    default_reason = "PRECONDITION_FAILED"


class Overloaded(HalogenError):
    """There is no room now."""

    default_reason = "OVERLOADED"


class Unavailable(HalogenError):
    """Nobody is there to do it now."""

    default_reason = "UNAVAILABLE"


class DeadlinePassed(HalogenError):
    """The caller's deadline has passed."""

    default_reason = "DEADLINE_PASSED"


class Cancelled(HalogenError):
    """The caller has left."""

    default_reason = "CANCELLED"


class Unauthenticated(HalogenError):
    """No credential was shown."""

    default_reason = "UNAUTHENTICATED"


class PermissionDenied(HalogenError):
    """The credential does not allow this."""

    default_reason = "PERMISSION_DENIED"


class Unsupported(HalogenError):
    """This build or configuration cannot do it."""

    default_reason = "UNSUPPORTED"


class CorruptData(HalogenError):
    """Bytes do not match their digest, or a file is not what it says."""

    default_reason = "CORRUPT_DATA"


class InternalError(HalogenError):
    """A fault of ours."""

    default_reason = "INTERNAL"

"""The table of methods and of the roles that may call them; what is in no row may be called by nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from services.common.auth.role import Role

Roles = frozenset[Role]

_ASKERS: Final = Roles({Role.INFER, Role.ADMIN})
_PUBLISHERS: Final = Roles({Role.PUBLISH, Role.ADMIN})
_ADMINS: Final = Roles({Role.ADMIN})
_OURS: Final = Roles({Role.SYSTEM})
_OURS_AND_ADMINS: Final = Roles({Role.SYSTEM, Role.ADMIN})
_NOBODY: Final = Roles()

_OPEN_SERVICES: Final = frozenset(
    {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
)  # balancers and probes show no credential; the protos are public


def _rows(service: str, names: Iterable[str], roles: Roles) -> dict[str, Roles]:
    return {f"/halogen.v1.{service}/{name}": roles for name in names}


_TABLE: Final[Mapping[str, Roles]] = {
    **_rows("InferenceService", ("Generate", "Chat", "Abort", "ListModels"), _ASKERS),
    **_rows("ControlService", ("CheckArtifact", "RegisterArtifact", "PublishModel"), _PUBLISHERS),
    **_rows("ControlService", ("RollbackModel", "AbortPublish", "PushCommit"), _PUBLISHERS),
    **_rows("ControlService", ("ListHistory", "WatchPublish", "GetStatus", "WatchStatus"), _PUBLISHERS),
    **_rows("ControlService", ("UnpublishModel", "QualifyArtifact"), _ADMINS),
    **_rows("SchedulerService", ("GrantTicket", "ReleaseTicket"), _OURS),
    **_rows("SchedulerService", ("GetOccupancy",), _OURS_AND_ADMINS),
    **_rows("EngineService", ("GenerateTokens", "WatchOccupancy"), _OURS),
    **_rows("LoaderService", ("PrepareArtifact", "ReadFile"), _OURS),
    **_rows("LoaderService", ("ConvertCheckpoint",), _OURS_AND_ADMINS),
}


def is_open(method: str) -> bool:
    """Whether ``/package.Service/Method`` may be called without a credential."""
    return method.removeprefix("/").partition("/")[0] in _OPEN_SERVICES


def allowed(method: str) -> Roles:
    """Who may call ``/package.Service/Method``, where it is not open to all."""
    return _TABLE.get(method, _NOBODY)

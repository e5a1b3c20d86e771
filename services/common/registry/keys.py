"""The registry's keys; nothing else spells them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, Revision

ARTIFACTS: Final = "artifacts/"
QUALIFICATIONS: Final = "qualifications/"
REVISIONS: Final = "revisions/"
TARGETS: Final = "targets/"
SERVING: Final = "serving/"
INTENTS: Final = "intents/"
COMMITS: Final = "commits/"
AUDIT: Final = "audit/"
ARTIFACT_AUDIT: Final = "artifact-audit/"
ENGINES: Final = "engines/"
LOADERS: Final = "loaders/"
GATEWAYS: Final = "gateways/"
SCHEDULERS: Final = "schedulers/"
LEADER: Final = "leader/"
SCHEDULER_LEADER: Final = f"{LEADER}scheduler"
SCHEDULER_TERM: Final = "terms/scheduler"  # without a lease: it outlives every leader


def artifact(model: ModelName, artifact_id: ArtifactId) -> str:
    return f"{ARTIFACTS}{model}/{artifact_id}"


def qualifications(artifact_id: ArtifactId) -> str:
    """The prefix of all that are of one artifact."""
    return f"{QUALIFICATIONS}{artifact_id}/"


def qualification(artifact_id: ArtifactId, build: str) -> str:
    return f"{qualifications(artifact_id)}{build}"


def split_qualification_key(key: str) -> tuple[ArtifactId, str]:
    """The artifact and the build of a qualifications/ key."""
    _, artifact_id, build = key.split("/")
    return ArtifactId(artifact_id), build


def revision(model: ModelName) -> str:
    return f"{REVISIONS}{model}"


def target(model: ModelName, cohort: Cohort) -> str:
    return f"{TARGETS}{model}/{cohort}"


def serving(model: ModelName, cohort: Cohort) -> str:
    return f"{SERVING}{model}/{cohort}"


def audits(model: ModelName) -> str:
    """The prefix of all that are of one model."""
    return f"{AUDIT}{model}/"


def audit(model: ModelName, revision: Revision) -> str:
    return f"{audits(model)}{revision:020d}"  # padded, so that text order is number order


def intents(model: ModelName) -> str:
    """The prefix of all that are of one model."""
    return f"{INTENTS}{model}/"


def intent(model: ModelName, revision: Revision) -> str:
    return f"{intents(model)}{revision:020d}"


def commits(model: ModelName) -> str:
    """The prefix of all that are of one model."""
    return f"{COMMITS}{model}/"


def commit(model: ModelName, revision: Revision) -> str:
    return f"{commits(model)}{revision:020d}"


def split_revision_key(key: str) -> tuple[ModelName, Revision]:
    """The model and the revision of an audit/, intents/ or commits/ key."""
    _, model, revision = key.split("/")
    return ModelName(model), Revision(int(revision))


def artifact_audit(model: ModelName, artifact_id: ArtifactId, number: int) -> str:
    """Of one verification; the number is that of the PENDING record which it ended, and only rises."""
    return f"{ARTIFACT_AUDIT}{model}/{artifact_id}/{number:020d}"


def split_artifact_audit_key(key: str) -> tuple[str, int]:
    """What all keys of one artifact begin with, and the number, of an artifact-audit/ key."""
    artifact, _, number = key.rpartition("/")
    return artifact, int(number)


def engine(process: ProcessId) -> str:
    return f"{ENGINES}{process}"


def loader(process: ProcessId) -> str:
    return f"{LOADERS}{process}"


def gateway(process: ProcessId) -> str:
    return f"{GATEWAYS}{process}"


def scheduler(process: ProcessId) -> str:
    return f"{SCHEDULERS}{process}"


def split_cohort_key(key: str) -> tuple[ModelName, Cohort]:
    """The model and cohort of a targets/ or serving/ key."""
    _, model, cohort = key.split("/")
    return ModelName(model), Cohort(cohort)


_SPLITS: Final[Mapping[str, Callable[[str], object]]] = {
    TARGETS: split_cohort_key,
    SERVING: split_cohort_key,
    INTENTS: split_revision_key,
    COMMITS: split_revision_key,
    AUDIT: split_revision_key,
    QUALIFICATIONS: split_qualification_key,
}


def check(key: str) -> None:
    """Raises ValueError at a key whose parts this build cannot read: somebody else's, or a newer version's."""
    split = _SPLITS.get(key[: key.find("/") + 1])
    if split:
        split(key)


def is_readable(key: str) -> bool:
    """Whether `check` passes."""
    try:
        check(key)
    except ValueError:
        return False
    return True

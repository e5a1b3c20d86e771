"""The registry's keys; nothing else spells them."""

from __future__ import annotations

from typing import Final

from services.common.ids import ArtifactId, Cohort, ModelName, ProcessId, Revision

ARTIFACTS: Final = "artifacts/"
REVISIONS: Final = "revisions/"
TARGETS: Final = "targets/"
SERVING: Final = "serving/"
AUDIT: Final = "audit/"
ENGINES: Final = "engines/"
LOADERS: Final = "loaders/"
GATEWAYS: Final = "gateways/"
SCHEDULERS: Final = "schedulers/"
LEADER: Final = "leader/"
SCHEDULER_LEADER: Final = f"{LEADER}scheduler"
SCHEDULER_TERM: Final = "terms/scheduler"  # without a lease: it outlives every leader


def artifact(model: ModelName, artifact_id: ArtifactId) -> str:
    return f"{ARTIFACTS}{model}/{artifact_id}"


def revision(model: ModelName) -> str:
    return f"{REVISIONS}{model}"


def target(model: ModelName, cohort: Cohort) -> str:
    return f"{TARGETS}{model}/{cohort}"


def serving(model: ModelName, cohort: Cohort) -> str:
    return f"{SERVING}{model}/{cohort}"


def audit(model: ModelName, revision: Revision) -> str:
    return f"{AUDIT}{model}/{revision:020d}"  # padded, so that text order is number order


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

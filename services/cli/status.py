"""What is served where, for people and for scripts."""

from __future__ import annotations

import json
from typing import Final

from rich.table import Table

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.aftermath import is_out
from services.cli.console import out
from services.cli.control_client import ControlClient
from services.cli.message_json import fields_of
from services.cli.outcome_text import stage_name, state_name
from services.cli.progress_text import progress_line
from services.cli.qualification_text import line
from services.common.control_characters import escaped
from services.common.rpc.endpoint import Peer

_ANSWER_S: Final = 10.0


async def read(gateway: Peer) -> pb.Status:
    async with ControlClient(gateway) as control:
        return await control.status(_ANSWER_S)


def show(status: pb.Status, *, as_json: bool) -> None:
    if as_json:
        out.print(json.dumps(fields_of(status), indent=2))
        return
    if status.is_stale:
        out.print(f"{status.answered_by} has lost the registry (etcd): this is what it knew last")
    out.print(_models(status))
    for news in (each for cohort in status.cohorts for each in _news(cohort)):
        out.print(news)
    for cohort in (each for each in status.cohorts if is_out(status, each)):
        out.print(f"{cohort.model}@{cohort.cohort} is served by no engine any more: publish again")
    out.print(_processes(status))
    for qualification in status.qualifications:
        out.print(line(qualification))


def _models(status: pb.Status) -> Table:
    table = _table("Models", "model", "cohort", "serving", "artifact", "desired", "by", "because")
    for cohort in status.cohorts:
        serving = "nothing" if is_out(status, cohort) else _serving(cohort)
        artifact = (cohort.serving_artifact_id or cohort.desired_artifact_id)[:12]
        desired = _desired(cohort)
        said = escaped(cohort.who), escaped(cohort.why)
        table.add_row(cohort.model, cohort.cohort, serving, artifact, desired, *said)
    return table


def _desired(cohort: pb.CohortStatus) -> str:
    """The revision, and how it stands unless it is simply served."""
    state = cohort.desired_state
    is_served = state in {pb.PUBLISH_STATE_UNSPECIFIED, pb.PUBLISH_STATE_APPLIED}
    return f"{cohort.desired_revision}{'' if is_served else ' ' + state_name(state)}"


def _news(cohort: pb.CohortStatus) -> list[str]:
    """Why a publish has failed, who is not ready for one, and what a registry does not know, in a line each."""
    name = f"{cohort.model}@{cohort.cohort} revision {cohort.desired_revision}"
    failure, lines = cohort.last_error, []
    if cohort.HasField("last_error"):
        lines.append(f"{name} FAILED ({stage_name(failure.stage)}, {failure.reason}): {failure.message}")
    if cohort.waiting_for:
        lines.append(f"{name} waits for {', '.join(cohort.waiting_for)}")
    return [*lines, *_unpushed(cohort)]


def _unpushed(cohort: pb.CohortStatus) -> list[str]:
    """Nothing where the registry of models knows what is served, or need not."""
    name, failure = (
        f"{cohort.model}@{cohort.cohort} revision {cohort.serving_revision}",
        cohort.registry_failure,
    )
    match cohort.registry_sync_status:
        case pb.REGISTRY_SYNC_STATUS_PENDING:
            return [f"{name} is to be pushed to the registry"]
        case pb.REGISTRY_SYNC_STATUS_FAILED:
            why = f"({stage_name(failure.stage)}, {failure.reason}): {failure.message}"
            return [f"{name} is served, and not in the registry {why}"]
    return []


def _table(title: str, *columns: str) -> Table:
    """What is too long for its column goes on below; nothing is cut off."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _serving(cohort: pb.CohortStatus) -> str:
    if not cohort.desired_artifact_id:
        return "unpublished"
    return str(cohort.serving_revision) if cohort.serving_artifact_id else "not yet"


def _processes(status: pb.Status) -> Table:
    table = _table("Processes", "process", "id and host", "address and http", "holds")
    for process in status.processes:
        where = f"{process.address}\n{process.http_address}"
        table.add_row(process.role, f"{process.id}\n{process.host}", where, "\n".join(_held(process)))
    return table


def _held(process: pb.ProcessStatus) -> list[str]:
    lines = [_generation(generation) for generation in process.generations]
    lines += [progress_line(progress) for progress in process.progress]
    lines += [_short(name) for name in process.weights or process.artifact_ids]
    lines += dict.fromkeys(f"{one.artifact_id[:12]} FAILED: {one.error}" for one in process.text_failures)
    if process.role == "scheduler":
        lines.append(f"leads, term {process.term}" if process.term else "stands by")
    if process.reading:
        lines.append(f"reads: {process.reading}")
    return [*lines, *filter(None, (process.placement, process.runtime_build))]


def _short(name: str) -> str:
    """The beginning of an artifact's id, and how its weights lie, if not as they are stored."""
    artifact_id, _, how = name.partition(".")
    return f"{artifact_id[:12]} {how}".rstrip()


def _generation(generation: pb.GenerationStatus) -> str:
    state = types_pb2.GenerationState.Name(generation.state).removeprefix("GENERATION_STATE_")
    line = f"{generation.model}@{generation.cohort} revision {generation.revision} {state}"
    if generation.layout:
        line += f", {generation.layout}"
    if generation.HasField("failure"):
        line += f" ({stage_name(generation.failure.stage)}, {generation.failure.reason})"
    return f"{line}: {generation.error}" if generation.error else line

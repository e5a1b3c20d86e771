"""`halogen qualify`: what was found of an artifact, put on record beside it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from halogen.v1 import control_pb2 as pb
from services.cli.asked_gateway import AskedGateway
from services.cli.console import CommandError, out
from services.cli.control_client import ControlClient
from services.cli.gateway_option import gateway_option
from services.cli.id_prefix import completed
from services.cli.operator_name import operator_name
from services.cli.options import (
    JsonOption,
    PublishedCohortOption,
    WhoOption,
)
from services.cli.qualification_text import fields, line
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.ids import ARTIFACT_ID_PATTERN, Cohort
from services.common.rpc.endpoint import Peer

_ANSWER_S: Final = 10.0

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="A model (what its cohort shall serve), an artifact's id or its beginning, or its directory."
    ),
]
WhyNeededOption = Annotated[str, typer.Option("--why", help="For the record.")]
ApproveOption = Annotated[
    bool | None,
    typer.Option("--approve/--withdraw", help="Approve it on that build, or approve it no more."),
]
AccuracyOption = Annotated[
    float | None, typer.Option("--accuracy", min=0, max=1, help="Share of right answers on the data set.")
]
GitCommitOption = Annotated[
    str, typer.Option("--git-commit", help="What it was trained from: 7 to 64 hexadecimal digits.")
]
DataSetOption = Annotated[str, typer.Option("--data-set", help="What the accuracy was measured on.")]
BuildOption = Annotated[
    str,
    typer.Option("--build", help="The build's root or its beginning; may be left out while there is one."),
]


@gateway_option
def qualify(
    target: TargetArgument,
    *,
    gateway: AskedGateway,
    why: WhyNeededOption,
    approve: ApproveOption = None,
    accuracy: AccuracyOption = None,
    git_commit: GitCommitOption = "",
    data_set: DataSetOption = "",
    build: BuildOption = "",
    cohort: PublishedCohortOption = Cohort.STABLE,
    who: WhoOption = "",
    as_json: JsonOption = False,
) -> None:
    """Put on record what was found of an artifact on one build; `halogen status` shows it."""
    request = pb.QualifyArtifactRequest(
        build=build,
        approved=approve,
        accuracy=accuracy,
        git_commit=git_commit,
        data_set=data_set,
        who=who or operator_name(),
        why=why,
    )
    qualification = asyncio.run(put_on_record(gateway.endpoint, target, cohort, request))
    out.print(json.dumps(fields(qualification)) if as_json else line(qualification))


async def put_on_record(
    gateway: Peer, target: str, cohort: str, request: pb.QualifyArtifactRequest
) -> pb.Qualification:
    """Sends the request for the artifact that `target` means; returns what is on record then."""
    async with ControlClient(gateway) as control:
        request.artifact_id = _local_id(target) or _known_id(await control.status(_ANSWER_S), target, cohort)
        return await control.qualify(request)


def _local_id(target: str) -> str:
    """The id that the text is, or that the directory of that name holds; empty when it is neither."""
    if ARTIFACT_ID_PATTERN.fullmatch(target):
        return target
    if (Path(target) / MANIFEST_NAME).is_file():
        return read_manifest(Path(target)).id
    return ""


def _known_id(status: pb.Status, target: str, cohort: str) -> str:
    """What the cohort of that model shall serve, or else the one artifact whose id begins so."""
    for each in status.cohorts:
        if (each.model, each.cohort) == (target, cohort) and each.desired_artifact_id:
            return each.desired_artifact_id
    if artifact_id := completed(target, (each.artifact_id for each in status.artifacts)):
        return artifact_id
    raise CommandError(
        f"{target} is no artifact directory, no artifact's id, and no model that {cohort} serves; see: halogen status"
    )


def on_record(gateway: Peer, artifact_id: str) -> list[dict[str, Any]]:
    """What is on record of an artifact, build by build, as the gateway tells it."""

    async def read() -> pb.Status:
        async with ControlClient(gateway) as control:
            return await control.status(_ANSWER_S)

    return [fields(each) for each in asyncio.run(read()).qualifications if each.artifact_id == artifact_id]

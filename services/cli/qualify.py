"""`halogen qualify`: what was found of an artifact, put on record beside it."""

from __future__ import annotations

import asyncio
import getpass
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from google.protobuf.json_format import MessageToDict

from halogen.v1 import control_pb2 as pb
from services.cli import asked_gateway
from services.cli.console import CommandError, out
from services.cli.control_client import ControlClient
from services.cli.options import (
    AddressOption,
    HomeOption,
    JsonOption,
    PublishedCohortOption,
    WhoOption,
)
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.manifest import MANIFEST_NAME
from services.common.ids import ARTIFACT_ID_PATTERN

_ANSWER_S: Final = 10.0


def qualify(
    target: Annotated[
        str, typer.Argument(help="A model (what its cohort shall serve), an artifact's id, or its directory.")
    ],
    *,
    why: Annotated[str, typer.Option("--why", help="For the record.")],
    approve: Annotated[
        bool | None,
        typer.Option("--approve/--withdraw", help="Approve it on that build, or approve it no more."),
    ] = None,
    accuracy: Annotated[
        float | None, typer.Option("--accuracy", min=0, max=1, help="Share of right answers on the data set.")
    ] = None,
    git_commit: Annotated[str, typer.Option("--git-commit", help="What it was trained from.")] = "",
    data_set: Annotated[str, typer.Option("--data-set", help="What the accuracy was measured on.")] = "",
    build: Annotated[
        str,
        typer.Option(
            "--build", help="The build's root or its beginning; may be left out while there is one."
        ),
    ] = "",
    cohort: PublishedCohortOption = "stable",
    who: WhoOption = "",
    address: AddressOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put on record what was found of an artifact on one build; `halogen status` shows it."""
    request = pb.QualifyArtifactRequest(
        build=build,
        approved=approve,
        accuracy=accuracy,
        git_commit=git_commit,
        data_set=data_set,
        who=who or getpass.getuser(),
        why=why,
    )
    gateway = asked_gateway.choose(address, home)
    qualification = asyncio.run(put_on_record(gateway.address, target, cohort, request))
    if as_json:
        out.print(json.dumps(_fields(qualification)), markup=False)
    else:
        out.print(line(qualification), markup=False)


async def put_on_record(
    address: str, target: str, cohort: str, request: pb.QualifyArtifactRequest
) -> pb.Qualification:
    """Sends the request for the artifact that `target` means; returns what is on record then."""
    async with ControlClient(address) as control:
        request.artifact_id = _local_id(target) or _published_id(
            await control.status(_ANSWER_S), target, cohort
        )
        return await control.qualify(request)


def _local_id(target: str) -> str:
    """The id that the text is, or that the directory of that name holds; empty when it is neither."""
    if ARTIFACT_ID_PATTERN.fullmatch(target):
        return target
    if (Path(target) / MANIFEST_NAME).is_file():
        return read_manifest(Path(target)).id
    return ""


def _published_id(status: pb.Status, model: str, cohort: str) -> str:
    for each in status.cohorts:
        if (each.model, each.cohort) == (model, cohort) and each.desired_artifact_id:
            return each.desired_artifact_id
    raise CommandError(
        f"{model} is no artifact directory, no id, and no model that {cohort} serves; see: halogen status"
    )


def on_record(address: str, artifact_id: str) -> list[dict[str, Any]]:
    """What is on record of an artifact, build by build, as the gateway tells it."""

    async def read() -> pb.Status:
        async with ControlClient(address) as control:
            return await control.status(_ANSWER_S)

    return [_fields(each) for each in asyncio.run(read()).qualifications if each.artifact_id == artifact_id]


def _fields(qualification: pb.Qualification) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(
        qualification, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return fields


def line(qualification: pb.Qualification) -> str:
    """All that is known, in one line."""
    facts = [
        f"{qualification.artifact_id[:12]} on build {qualification.build[:12]}",
        qualification.runtime_build,
    ]
    if qualification.HasField("approved"):
        facts.append("approved" if qualification.approved else "approval withdrawn")
    if qualification.HasField("accuracy"):
        facts.append(f"accuracy {qualification.accuracy:g}")
    facts += [f"{name} {value}" for name, value in _sources(qualification) if value]
    facts += [f"{probe.name} {'passed' if probe.passed else 'failed'}" for probe in qualification.probes]
    return ", ".join(facts)


def _sources(qualification: pb.Qualification) -> tuple[tuple[str, str], ...]:
    return ("data set", qualification.data_set), ("git commit", qualification.git_commit)

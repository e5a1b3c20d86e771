"""`halogen history`: what was published of a model, and how each publish ended."""

from __future__ import annotations

import json
from typing import Annotated, Final

import typer
from rich.table import Table

from halogen.v1 import control_pb2 as pb
from services.cli.asked_gateway import AskedGateway
from services.cli.console import out
from services.cli.control_client import ControlClient
from services.cli.gateway_option import gateway_option
from services.cli.message_json import fields_of
from services.cli.options import JsonOption, PublishedModelArgument
from services.cli.outcome_text import outcome_text
from services.cli.traced import run_traced
from services.common.control_characters import escaped
from services.common.rpc.endpoint import Peer

_ANSWER_S: Final = 10.0

AnyCohortOption = Annotated[str, typer.Option("--cohort", help="stable or canary; both when left out.")]
MostOption = Annotated[int, typer.Option("--most", min=1, max=1000, help="Most publishes to show.")]


@gateway_option
def history(
    model: PublishedModelArgument,
    *,
    gateway: AskedGateway,
    cohort: AnyCohortOption = "",
    most: MostOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show what was published of a model, newest first: by whom, why, and how it ended."""
    request = pb.ListHistoryRequest(model=model, cohort=cohort, max_entries=most)
    entries = run_traced(_read(gateway.endpoint, request))
    if as_json:
        out.print(json.dumps([fields_of(entry) for entry in entries], indent=2))
    else:
        out.print(_table(model, entries))


async def _read(gateway: Peer, request: pb.ListHistoryRequest) -> list[pb.HistoryEntry]:
    async with ControlClient(gateway) as control:
        return await control.history(request, _ANSWER_S)


def _table(model: str, entries: list[pb.HistoryEntry]) -> Table:
    table = Table(title=model)
    for column in ("revision", "cohort", "artifact", "outcome", "at", "by", "because"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        artifact, at = entry.artifact_id[:12] or "none", entry.time.ToJsonString()[:19]
        said = escaped(entry.who), escaped(entry.why)
        table.add_row(str(entry.revision), entry.cohort, artifact, _ended(entry), at, *said)
    return table


def _ended(entry: pb.HistoryEntry) -> str:
    """The outcome, and how it stands in the registry of models, if it is to be there."""
    status = entry.registry_sync_status
    if status == pb.REGISTRY_SYNC_STATUS_UNSPECIFIED:
        return outcome_text(entry.outcome)
    name = pb.RegistrySyncStatus.Name(status).removeprefix("REGISTRY_SYNC_STATUS_").lower()
    return f"{outcome_text(entry.outcome)}, registry: {name}"

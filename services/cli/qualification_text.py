"""What is on record of an artifact on a build, as people read it: in one line, or fact by fact."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.json_format import MessageToDict

from halogen.v1 import control_pb2 as pb
from services.common.control_characters import escaped


def fields(qualification: pb.Qualification) -> dict[str, Any]:
    """All of it, for scripts."""
    told: dict[str, Any] = MessageToDict(
        qualification, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return told


def line(qualification: pb.Qualification) -> str:
    """All that stands, in one line."""
    told = [
        f"{qualification.artifact_id[:12]} on build {qualification.build[:12]}",
        qualification.runtime_build,
    ]
    if qualification.HasField("approved"):
        told.append("approved" if qualification.approved else "approval withdrawn")
    if qualification.HasField("accuracy"):
        told.append(f"accuracy {qualification.accuracy:g}")
    told += [f"{name} {escaped(value)}" for name, value in _sources(qualification) if value]
    told += [f"{probe.name} {'passed' if probe.passed else 'failed'}" for probe in qualification.probes]
    return ", ".join(told)


def _sources(qualification: pb.Qualification) -> tuple[tuple[str, str], ...]:
    return ("data set", qualification.data_set), ("git commit", qualification.git_commit)


def facts(told: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The name and the value of each of the `fields`, and of each that is in them; not what nobody said."""
    for name, value in told.items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {factor}", str(chosen)) for factor, chosen in value.items())
        elif name == "probes":
            yield from ((f"probe {probe['name']}", _outcome(probe)) for probe in value)
        elif name == "statements":
            yield from ((f"said {said['time'][:19]}", _words(said)) for said in value)
        elif value != "":
            yield name, str(value)


def _outcome(probe: Mapping[str, Any]) -> str:
    return f"{'passed' if probe['passed'] else 'failed'} {probe['detail']}".rstrip()


def _words(said: Mapping[str, Any]) -> str:
    """Who said what, and why."""
    names = ("approved", "accuracy", "git_commit", "data_set")
    found = [f"{name} {said[name]}" for name in names if said.get(name, "") != ""]
    return f"{said['who']} ({said['why']}): {', '.join(found)}"

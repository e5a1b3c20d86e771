"""Messages as JSON, for scripts."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_NUMBERS: Final = (
    "revision",
    "term",
    "superseded_by",
    "sequence_id",
    "next_id",
    "state_version",
    "_ms",
)  # how the names of 64-bit integers end


def fields_of(message: Message) -> dict[str, Any]:
    """All that it says, also what is empty."""
    fields: dict[str, Any] = _numbers(
        MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    )
    return fields


def _numbers(value: Any) -> Any:
    """Revisions as numbers: proto3's JSON writes 64-bit integers as text."""
    match value:
        case dict():
            return {k: int(v) if k.endswith(_NUMBERS) else _numbers(v) for k, v in value.items()}
        case list():
            return [_numbers(each) for each in value]
    return value

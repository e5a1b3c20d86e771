"""The words of the system as types, so that one id is never passed for another."""

from __future__ import annotations

import enum
import re
import secrets
from typing import NewType

ModelName = NewType("ModelName", str)
ArtifactId = NewType("ArtifactId", str)  # hex sha256 of the canonical manifest
Revision = NewType("Revision", int)  # per model, rising across cohorts; 0 is "none yet"
ProcessId = NewType("ProcessId", str)  # configured name of a process, stable across restarts
InstanceId = NewType("InstanceId", str)  # fresh for every start of a process
TicketId = NewType("TicketId", str)
RequestId = NewType("RequestId", str)

MODEL_NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
ARTIFACT_ID_PATTERN = re.compile(r"[0-9a-f]{64}")


class Cohort(enum.StrEnum):
    """The part of a model's traffic that a target is for."""

    STABLE = "stable"
    CANARY = "canary"


def fresh_id(kind: str) -> str:
    """A new random id such as ``engine-9f86d081884c7d65``, unique without coordination."""
    return f"{kind}-{secrets.token_hex(8)}"

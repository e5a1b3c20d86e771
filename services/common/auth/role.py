"""What a credential is for."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """Every credential has one."""

    INFER = "infer"  # asks models
    PUBLISH = "publish"  # says what is served
    ADMIN = "admin"  # both, and what ends a model's service or speaks for an artifact
    SYSTEM = "system"  # a process of ours that calls another

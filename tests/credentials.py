"""Tokens of every role, as an operator would hand them out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import fresh_token, line_of
from services.common.rpc.credentials import Credentials


class HandedOut(NamedTuple):
    """What there is of them.

    Attributes:
        callers_file: Of those who may call.
        system_file: With the token of the processes.
        tokens: By the role's name, of a holder of the same name.
    """

    callers_file: Path
    system_file: Path
    tokens: Mapping[str, str]

    def credentials(self, role: Role) -> Credentials:
        return Credentials.of(token=self.tokens[role])

    def settings(self) -> dict[str, Any]:
        """Of a process that asks its callers, and shows itself to those that it calls."""
        return {"callers_file": self.callers_file, "token_file": self.system_file}


def hand_out(folder: Path, **also: Role) -> HandedOut:
    """A token for each role, and for each of `also`, by its name."""
    holders = [*(Principal(role, role) for role in Role), *(Principal(*each) for each in also.items())]
    tokens = {holder.name: fresh_token() for holder in holders}
    lines = [line_of(holder, tokens[holder.name]) for holder in holders]
    made = HandedOut(folder / "callers", folder / "system.token", tokens)
    write_secret(made.callers_file, "\n".join(["# who may call", "", *lines]))
    write_secret(made.system_file, tokens[Role.SYSTEM] + "\n")
    return made


def write_secret(path: Path, content: str) -> None:
    """For its owner's eyes; a file that is there is replaced, as a rotation does."""
    fresh = path.with_suffix(".new")
    fresh.touch(0o600)
    fresh.write_text(content)
    fresh.rename(path)

"""`halogen token`: a credential for a caller."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import CommandError, out
from services.cli.options import JsonOption
from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import fresh_token, line_of

RoleArgument = Annotated[
    Role,
    typer.Argument(help="infer asks models; publish says what is served; admin may do both; system is ours."),
]
HolderArgument = Annotated[
    str, typer.Argument(help="Who gets it: a tenant, a team, a process. Tenants never share cached prompts.")
]
CallersFileOption = Annotated[
    Path,
    typer.Option(
        "--callers-file", help="Where processes look whom to let in; a line is added, and no token."
    ),
]


def token(
    role: RoleArgument,
    holder: HolderArgument,
    *,
    callers_file: CallersFileOption,
    as_json: JsonOption = False,
) -> None:
    """Make a token, let its holder in, and print it: it is written nowhere else.

    Processes read their --callers-file again by themselves. Remove the line, and the token is not taken any more.
    """
    try:
        principal = Principal.parse(role, holder)
    except ValueError as fault:
        raise CommandError(str(fault)) from None
    fresh = fresh_token()
    _append(callers_file, line_of(principal, fresh))
    told = {"token": fresh, "role": role, "name": holder}
    out.print(json.dumps(told) if as_json else fresh, markup=False)


def _append(path: Path, line: str) -> None:
    """Adds a line in one write; a new file is its owner's alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(f"{line}\n".encode())
    except OSError as fault:
        raise CommandError(f"{path}: {fault.strerror}; give a --callers-file that can be written") from None

"""`halogen token`: a credential for a caller."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import CommandError, out
from services.cli.options import JsonOption
from services.common.auth.principal import Principal
from services.common.auth.role import Role
from services.common.auth.tokens import callers_in, fresh_token, line_of

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
TokenOutOption = Annotated[
    Path | None,
    typer.Option(
        "--token-out",
        help="A new file, for its owner's eyes only, that the token goes into instead of being printed.",
    ),
]


def token(
    role: RoleArgument,
    holder: HolderArgument,
    *,
    callers_file: CallersFileOption,
    token_out: TokenOutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a token, let its holder in, and print it, or put it into a file: it is kept nowhere else.

    Processes read their --callers-file again by themselves. Remove the line, and the token is not taken any more.
    """
    try:
        principal = Principal.parse(role, holder)
        _check(callers_file)
    except (ValueError, OSError) as fault:
        raise CommandError(str(fault)) from None
    fresh = fresh_token()
    with _kept(fresh, token_out):
        _append(callers_file, line_of(principal, fresh))
    told = {"role": role, "name": holder}
    told |= {"token": fresh} if token_out is None else {"token_file": str(token_out)}
    if as_json:
        out.print(json.dumps(told))
    elif token_out is None:
        out.print(fresh)


def _check(callers_file: Path) -> None:
    """Raises ValueError for a file that processes would refuse, so that nothing is added to it."""
    with contextlib.suppress(FileNotFoundError):
        callers_file.stat()
        callers_in(callers_file)


@contextlib.contextmanager
def _kept(token: str, path: Path | None) -> Iterator[None]:
    """Puts the token into a new file, its owner's alone whatever the umask, for good if the scope ends well."""
    if path is None:
        yield
        return
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    except OSError as fault:
        raise CommandError(f"{path}: {fault.strerror}; give a --token-out that can be made anew") from None
    try:
        yield
    except BaseException:
        path.unlink()
        raise


def _append(path: Path, line: str) -> None:
    """Adds a line of its own in one write, also behind one that does not end; a new file is its owner's alone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            file.seek(0, os.SEEK_END)
            is_whole = file.tell() == 0 or os.pread(descriptor, 1, file.tell() - 1) == b"\n"
            file.write((b"" if is_whole else b"\n") + f"{line}\n".encode())
    except OSError as fault:
        raise CommandError(f"{path}: {fault.strerror}; give a --callers-file that can be written") from None

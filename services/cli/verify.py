"""`halogen verify SRC ARTIFACT`: the three checks that operators do by hand, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import convert, trial
from services.cli.console import CommandError, byte_progress, err, out
from services.common.checkpoint.artifact_store import read_manifest
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.manifest import PATHS, Role
from services.common.text.tokenizer_file import read_tokenizer


def verify(
    source: Annotated[Path, typer.Argument(help="What it was converted from.")],
    artifact: Annotated[Path, typer.Argument(help="The artifact directory.")],
    prompt: Annotated[
        str, typer.Option("--prompt", help="What both are to continue; empty compares tensors only.")
    ] = "Once upon a time",
) -> None:
    """Compare an artifact with its source: every value, one prompt's tokens, two timed starts."""
    with byte_progress() as progress:
        for line in convert.compare(source, artifact, progress):
            out.print(f"tensors  {line}")
    if prompt:
        _compare_answers(source, artifact, prompt, read_manifest(artifact).architecture.dtype)


def _compare_answers(source: Path, artifact: Path, prompt: str, dtype: DType) -> None:
    """Both sides in fresh processes, one after the other.

    Raises:
        CommandError: They say different things, or one says nothing.
    """
    ids = read_tokenizer((artifact / PATHS[Role.TOKENIZER]).read_bytes()).encode(prompt).ids
    with err.status("asking the artifact"):
        ours = trial.try_artifact(artifact, ids)
    try:
        with err.status("asking the source"):
            theirs = trial.try_source(source, ids, dtype)
    except trial.NotInstalledError as missing:
        out.print(f"prompt   not compared, since the source cannot be run here: {missing}")
        out.print(f"starts   first token after {ours.first_token_s:.1f} s from the artifact (halogen)")
    else:
        _tell(theirs, ours, dtype)


def _tell(theirs: trial.Trial, ours: trial.Trial, dtype: DType) -> None:
    equal = trial.equal_tokens(theirs, ours)
    if not trial.is_faithful(theirs, ours, dtype):
        raise CommandError(
            f"token {equal} of the answer differs from that of {theirs.who}, which was sure of it (by "
            f"{theirs.margins[equal]:.3f}); convert the source again, and report it if that changes nothing"
        )
    near_tie = "" if equal == len(ours.tokens) else ", then a near tie that rounding decides"
    out.print(f"prompt   {equal} of {len(ours.tokens)} tokens equal those of {theirs.who}{near_tie}")
    out.print(
        f"starts   first token after {theirs.first_token_s:.1f} s from the source ({theirs.who}), "
        f"{ours.first_token_s:.1f} s from the artifact (halogen), each in a fresh process"
    )

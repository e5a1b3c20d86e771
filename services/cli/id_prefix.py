"""The beginning of an artifact's id, which is enough where only one artifact's id begins so."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from services.cli.console import CommandError
from services.common.ids import ArtifactId

ID_PREFIX_PATTERN: Final = re.compile(r"[0-9a-f]{8,64}")


def completed(given: str, known: Iterable[str]) -> ArtifactId | None:
    """The one of the `known` ids that begins so; None where none does, or it is too short to say.

    Raises:
        CommandError: Several do; the line names them.
    """
    begins = ID_PREFIX_PATTERN.fullmatch(given)
    matching = sorted({each for each in known if begins and each.startswith(given)})
    if len(matching) > 1:
        raise CommandError(f"{given} is the beginning of {' and of '.join(matching)}; give more of the id")
    return ArtifactId(matching[0]) if matching else None

"""``python -m services.loader.verify SRC ARTIFACT``: compares an artifact with its source, value by value.

Progress and the end are told as `services.loader.convert` tells them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from services.loader.command import paths_parser, run_command
from services.loader.verification import verify


def main(argv: Sequence[str]) -> int:
    return run_command(
        paths_parser(__doc__, ("SRC", "ARTIFACT")),
        argv,
        lambda options, reporter: verify(
            options.source, options.destination, reporter.progress, reporter.note
        ),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

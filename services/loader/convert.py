"""``python -m services.loader.convert SRC OUT``: a Hugging Face directory becomes an artifact directory.

Prints the artifact id on standard output. With ``--progress json`` standard output carries one JSON object a
line instead: ``{"done_bytes": …, "total_bytes": …}`` as it goes, then ``{"artifact_id": …}`` or
``{"error": {"kind": …, "message": …, "reason": …}}``. Exit status 1 after an error, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from services.common.errors import HalogenError
from services.loader.conversion import convert
from services.loader.progress import REPORTERS, open_reporter


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m services.loader.convert", description=__doc__)
    parser.add_argument("source", type=Path, metavar="SRC", help="Hugging Face directory with safetensors")
    parser.add_argument("destination", type=Path, metavar="OUT", help="artifact directory to be made")
    parser.add_argument("--progress", choices=REPORTERS, default="bar", help="how progress is shown")
    options = parser.parse_args(argv)
    signal.signal(
        signal.SIGTERM, lambda number, _frame: sys.exit(128 + number)
    )  # scopes close on their way out
    with open_reporter(options.progress, f"convert {options.source.name}") as reporter:
        try:
            manifest = convert(options.source, options.destination, reporter.progress)
        except (HalogenError, OSError) as failure:
            return reporter.fail(failure)
        except KeyboardInterrupt:
            return 130
    reporter.finish(manifest.id)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

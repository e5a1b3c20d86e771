"""``python -m services.loader.convert SRC OUT``: a Hugging Face directory becomes an artifact directory.

Prints the artifact id on standard output. With ``--progress json`` standard output carries one JSON object a
line instead: ``{"done_bytes": …, "total_bytes": …}`` as it goes, then ``{"artifact_id": …}`` or
``{"error": {"kind": …, "message": …, "reason": …}}``. Exit status 1 after an error, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys

from services.loader.command import run_command
from services.loader.conversion import convert

if __name__ == "__main__":
    sys.exit(run_command(sys.argv[1:], __doc__, ("SRC", "OUT"), convert))

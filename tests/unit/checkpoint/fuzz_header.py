"""Feeds the header reader with whatever is not a header: ``python -m tests.unit.checkpoint.fuzz_header CORPUS SECONDS``.

Where atheris can be installed, the code that is reached guides the changes; elsewhere they are made blindly.
"""

from __future__ import annotations

import importlib.util
import resource
import sys
from pathlib import Path
from typing import Final

MEMORY_BYTES: Final = 2 << 30  # of addresses: a reader that asks for more has believed a header


def guided(corpus: Path, seconds: int) -> None:
    import atheris  # noqa: PLC0415  # not everywhere

    with atheris.instrument_imports(include=["services.common.checkpoint"]):
        from tests.unit.checkpoint.fuzz_target import target  # noqa: PLC0415  # while imports are instrumented
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={seconds}",
            "-max_len=20000",
            "-rss_limit_mb=0",  # its measure begins with what the process that starts this one has used
            f"-artifact_prefix={corpus}-",
        ],
        target,
    )
    atheris.Fuzz()


def blind(corpus: Path, seconds: int) -> None:
    from tests.unit.checkpoint.fuzz_target import change_blindly  # noqa: PLC0415  # as above

    runs = change_blindly([path.read_bytes() for path in sorted(corpus.iterdir())], seconds)
    print(f"Done {runs} runs in {seconds} second(s)", file=sys.stderr)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    fuzz = guided if importlib.util.find_spec("atheris") else blind
    fuzz(Path(sys.argv[1]), int(sys.argv[2]))

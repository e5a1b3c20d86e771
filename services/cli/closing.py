"""What `halogen up` says last: where everything is, how to go on, and what would make it faster."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from services.cli.console import err, out
from services.cli.run_state import Addresses


def tell(addresses: Addresses, runtime_build: str) -> None:
    """Prints it.

    Args:
        addresses: Of the system that runs.
        runtime_build: What its engine says of itself; empty if unknown.
    """
    out.print()
    for role in ("gateway", "scheduler", "engine", "loader", "etcd"):
        http = addresses.http.get(role)
        out.print(f"{role:<10} {getattr(addresses, role)}" + (f"   http://{http}/metrics" if http else ""))
    halogen = command(Path(sys.executable).with_name("halogen"))
    out.print(
        f"\nask it more:  {halogen} chat     what is served:  {halogen} status     stop it:  {halogen} down"
    )
    if advice := kernel_advice(runtime_build):
        err.print(advice)


def command(installed: Path) -> str:
    """How the shell that we were started from finds our command: by its name, or else by a path."""
    found = shutil.which("halogen")
    if not installed.exists() or (found and Path(found).samefile(installed)):
        return "halogen"
    path = os.path.relpath(installed)
    return str(installed) if path.startswith("..") else path


def kernel_advice(runtime_build: str) -> str:
    """Why the engine computes with the slower kernels, and the remedy; empty if it does not."""
    if "portable" not in runtime_build.split():
        return ""
    slower = "the engine computes with portable kernels, which are several times slower than those in C"
    if shutil.which("cc") or shutil.which("gcc"):
        return f"{slower}; its log, engine.log, says why: not_faster_because"
    return (
        f"{slower}: no C compiler is installed. Install one (on Debian: apt-get install gcc), then "
        "install halogen again (in a checkout: rm .venv/.up; make up)"
    )

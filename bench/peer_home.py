"""Where bench/setup_peers.sh has put the engines that ours is measured beside, and how they are run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

MISSING: Final = "is missing: bench/setup_peers.sh {folder}"
_KV_GIB: Final = 4
_LIBRARIES: Final = Path("/usr/lib")


class PeerHome(NamedTuple):
    """A folder of environments."""

    folder: Path

    @classmethod
    def find(cls, given: Path | None) -> PeerHome:
        """The one that is given, or $HALOGEN_PEERS, or where the script puts them by itself."""
        usual = Path(os.environ.get("HALOGEN_PEERS", Path.home() / ".cache" / "halogen-peers"))
        return cls(given or usual)

    @property
    def vllm(self) -> Path:
        """Where vLLM's commands are."""
        return self.folder / "vllm" / "bin"

    @property
    def llamacpp(self) -> Path:
        """Where llama.cpp's commands are."""
        return self.folder / "llamacpp" / "bin"

    def obstacle(self, name: str) -> str:
        """Why one cannot be run; empty if it can."""
        there = (self.folder / name / ".made").exists()
        return "" if there else f"{name} {MISSING.format(folder=self.folder)}"

    def vllm_environment(self, threads: int) -> dict[str, str]:
        """As its manual has it: so many threads on as many cores, Intel's OpenMP, tcmalloc where the host has it."""
        cores = sorted(os.sched_getaffinity(0))[:threads]
        preloaded = (
            self.folder / "vllm" / "lib" / "libiomp5.so",
            *_LIBRARIES.glob("*/libtcmalloc_minimal.so.4"),
        )
        return {
            "LD_PRELOAD": ":".join(str(library) for library in preloaded if library.exists()),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_CPU_KVCACHE_SPACE": str(_KV_GIB),
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }

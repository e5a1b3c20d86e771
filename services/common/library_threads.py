"""How many threads the libraries that we use may start.

Left to themselves they count the processors of the host, whatever our control group allows: on a large host that is
scores of threads, and the memory that each takes, for a container of one processor.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

# OpenMP (torch), and rayon (tokenizers). They read it when they are first imported, or first used.
_AS_MANY_AS_PROCESSORS: Final = ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")
_ONE: Final = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # numpy's matrix products: there are none


def bound_library_threads(environment: MutableMapping[str, str], processors: int) -> None:
    """Sets what is not set, before the libraries are imported.

    Args:
        environment: This process's variables.
        processors: How many it can keep busy.
    """
    for name in _AS_MANY_AS_PROCESSORS:
        environment.setdefault(name, str(processors))
    for name in _ONE:
        environment.setdefault(name, "1")

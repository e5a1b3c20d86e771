"""What a process imports is no garbage, and is never looked through for any."""

from __future__ import annotations

import subprocess
import sys

IMPORTING = """
import gc
from services.common.importing import importing

with importing():
    kept = [[] for _ in range(1_000)]
    print(gc.isenabled())
print(gc.isenabled(), gc.get_freeze_count() > len(kept))
"""


def test_garbage_is_looked_for_after_imports_and_not_among_them() -> None:
    """Fault injection: turns red when importing leaves collection off, or does not freeze what is there."""
    ran = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=True)
    assert ["False", "True True"] == ran.stdout.splitlines()

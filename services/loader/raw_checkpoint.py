"""What any source gives: its small files, its tensors, and what was left out of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from services.common.checkpoint.requirements import ANYWHERE, Hosts
from services.loader.source_tensor import Table


class RawCheckpoint(NamedTuple):
    """A source, read but not yet judged.

    Attributes:
        small_files: Name to content of every file that an artifact keeps beside the weights.
        table: Its tensors, and the training state that no artifact keeps.
        hosts: Where it may be served, as far as it says.
    """

    small_files: Mapping[str, bytes]
    table: Table
    hosts: Hosts = ANYWHERE

"""What /proc/PID/smaps says of one mapping (man 5 proc)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

_RANGE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
_HUGE: Final = ("AnonHugePages", "ShmemPmdMapped", "FilePmdMapped", "Shared_Hugetlb", "Private_Hugetlb")


class Smaps(NamedTuple):
    """Bytes by kind.

    Attributes:
        pss_bytes: The resident ones, each divided by the number of processes that map it.
    """

    resident_bytes: int
    pss_bytes: int
    huge_bytes: int
    private_bytes: int
    is_shared: bool

    @property
    def is_huge(self) -> bool:
        """Whether all of it but an end shorter than a huge page lies on huge pages."""
        return self.huge_bytes > 0 and self.resident_bytes - self.huge_bytes < 2 << 20


def parse_smaps(lines: Iterable[str], address: int) -> Smaps:
    """The counters of the mapping that holds `address`; takes no more lines than it needs, as each costs the kernel.

    Raises:
        LookupError: None does.
    """
    lines = iter(lines)
    for line in lines:
        found = _RANGE.match(line)
        if found and int(found[1], 16) <= address < int(found[2], 16):
            is_shared = line.split()[1][3] == "s"
            break
    else:
        raise LookupError(f"no mapping at {address:#x}")
    counters: dict[str, int] = {}
    for line in lines:
        if _RANGE.match(line):
            break
        name, _, value = line.rstrip().partition(":")
        if value.endswith("kB"):
            counters[name] = int(value[:-2]) * 1024
    return Smaps(
        resident_bytes=counters.get("Rss", 0),
        pss_bytes=counters.get("Pss", 0),
        huge_bytes=sum(counters.get(name, 0) for name in _HUGE),
        private_bytes=counters.get("Private_Clean", 0) + counters.get("Private_Dirty", 0),
        is_shared=is_shared,
    )

"""The audit of artifacts, artifact-audit/, kept within bounds: which records go when one more comes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from services.common.registry import keys

MAX_RECORDS_OF_ARTIFACT: Final = 20
MAX_RECORDS: Final = 1_000
MAX_DROPPED: Final = 100  # in one transaction, of which etcd lets 128 operations pass


def outlived(present: Iterable[str], coming: str) -> tuple[str, ...]:
    """The records that go in the transaction that writes the `coming` one.

    An artifact keeps its last 20, and all together keep 1,000: the oldest go. The last record of every artifact stays
    whatever the count, since it says how the artifact came to be what it is: where there are more artifacts than
    that, there are as many records.

    Args:
        present: Keys of artifact-audit/.
        coming: One that is not there yet, later than all.
    """
    by_age = [*sorted(set(present) - {coming}, key=_number), coming]
    last = {_artifact(key): key for key in by_age}
    own = [key for key in by_age if _artifact(key) == _artifact(coming)]
    going = own[:-MAX_RECORDS_OF_ARTIFACT]
    decided = {*last.values(), *going}
    superseded = [key for key in by_age if key not in decided]
    excess = max(0, len(by_age) - len(going) - MAX_RECORDS)
    return (*going, *superseded[:excess])[:MAX_DROPPED]


def _artifact(key: str) -> str:
    return keys.split_artifact_audit_key(key)[0]


def _number(key: str) -> int:
    return keys.split_artifact_audit_key(key)[1]

"""What the header reader is fuzzed with, and what may come of it."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Iterator
from typing import Any, Final

from services.common.checkpoint import canonical
from services.common.checkpoint.digest import sha256_hex
from services.common.checkpoint.file_format import MAGIC
from services.common.checkpoint.header import PREAMBLE, REVISION, VERSION, Header
from services.common.checkpoint.layout import ALIGNMENT, align
from services.common.errors import HalogenError
from tests.unit.checkpoint.golden import FOLDER

GOLDEN: Final = [
    path.read_bytes()[PREAMBLE.size :].partition(b"\0")[0] for path in sorted(FOLDER.glob("*.halogen"))
]
ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    1,
    3,
    1 << 63,
    1.5,
    1e300,
    "",
    "x",
    "fp8_e4m3",
    "int4",
    [],
    [0],
    [1] * 9,
    ["x"],
    {},
)


def target(data: bytes) -> None:
    """Fails if anything but one of our errors, or a header that encodes to what was read, comes of it."""
    for start in (data, edited(data), *sealed(data)):
        try:
            header = Header.decode(start)
        except HalogenError:
            continue
        assert header.encode() == start[: header.data_offset]


def sealed(data: bytes) -> Iterator[bytes]:
    """The same as a header's JSON, with the right length, sha256 and offset, so that its fields are looked at."""
    yield seal(data)
    try:
        value = json.loads(data)
        yield seal(canonical.encode(value))
        yield seal(canonical.encode(with_offset(value)))
    except (ValueError, RecursionError):
        return


def edited(seed: bytes) -> bytes:
    """A golden header with one to three places of its JSON changed, as `seed` decides."""
    chance = random.Random(seed)
    value = json.loads(chance.choice(GOLDEN))
    for _ in range(chance.randint(1, 3)):
        _edit(value, chance)
    return seal(canonical.encode(with_offset(value)))


def _edit(value: Any, chance: random.Random) -> None:
    """Goes down to some place, and puts an odd value there, or nothing."""
    while True:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        if not value[key] or not isinstance(value[key], dict | list) or chance.random() < 0.2:
            break
        value = value[key]
    if chance.random() < 0.2:
        del value[key]
    else:
        value[key] = copy.deepcopy(chance.choice(ODD))


def with_offset(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    for _ in range(3):
        value["data_offset"] = align(PREAMBLE.size + len(canonical.encode(value)), ALIGNMENT)
    return value


def seal(text: bytes) -> bytes:
    start = PREAMBLE.pack(MAGIC, VERSION, REVISION, len(text), bytes.fromhex(sha256_hex(text))) + text
    return start.ljust(align(len(start), ALIGNMENT), b"\0")


def change_blindly(corpus: list[bytes], seconds: float) -> int:
    """Bits, bytes and stretches changed at random, from a fixed seed; returns how many were tried."""
    chance, end, runs = random.Random(0), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = bytearray(chance.choice(corpus))
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            length = chance.choice((0, 1, 1, 8))
            data[at : at + length] = chance.choice((b"0", b"-1", b"null", b"1e9", b"", chance.randbytes(4)))
        target(bytes(data))
        runs += 1
    return runs

"""``python -m services.common.text.encoding_process``: encodes an artifact's representative requests, in a process of its own.

So that whoever serves meanwhile keeps the interpreter's lock. Standard input is what `pack` gives; standard output is
one JSON object: `prompts`, or an `error` in words. It gives way to others.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Final

from services.common.errors import CorruptData, HalogenError
from services.common.text.representative_prompts import RepresentativePrompt, encode_requests

_NICE: Final = 10  # a tenth of a core that others want


def pack(files: Mapping[str, bytes]) -> bytes:
    """Name to content of files, as one: a line of JSON with names and sizes, then the contents."""
    sizes = {name: len(content) for name, content in files.items()}
    return b"\n".join((json.dumps(sizes).encode(), b"".join(files.values())))


def unpack(packed: bytes) -> dict[str, bytes]:
    """What was packed."""
    begin = packed.index(b"\n") + 1
    files: dict[str, bytes] = {}
    for name, size in json.loads(packed[:begin]).items():
        files[name] = packed[begin : begin + size]
        begin += size
    return files


def read_answer(said: bytes) -> tuple[RepresentativePrompt, ...]:
    """What the process said.

    Raises:
        CorruptData: A request cannot be encoded.
        ValueError: It has not come to its end.
    """
    answer = json.loads(said)
    if "error" in answer:
        raise CorruptData(answer["error"], reason="REPRESENTATIVE_REQUESTS")
    return tuple(
        RepresentativePrompt(number, tuple(ids), tuple(expected))
        for number, ids, expected in answer["prompts"]
    )


def main() -> None:
    os.nice(_NICE)
    try:
        answer: dict[str, object] = {"prompts": encode_requests(unpack(sys.stdin.buffer.read()))}
    except HalogenError as failure:
        answer = {"error": failure.message}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()

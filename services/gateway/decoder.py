"""A tokenizer's decoder, one token at a time and byte for byte what it makes of the whole.

The stages are those of the `tokenizers` package. Each takes pieces and gives the text that can no longer
change: half a character waits for its other half. A decoder that is not in the table is refused when the
model is loaded, not guessed at.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, Protocol

from services.common.errors import Unsupported

Spec = Mapping[str, Any]


class Stage(Protocol):
    """One step of a decoder, for one text."""

    def push(self, piece: str) -> Iterable[str]:
        """Takes the next piece; gives what is final."""
        ...

    def finish(self) -> Iterable[str]:
        """What was held back, when there are no more pieces."""
        ...


StageMaker = Callable[[], Stage]


def _printable_bytes() -> dict[str, int]:
    """The character that byte-level BPE writes for every byte (GPT-2: printable ones stand for themselves)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF: Final = _printable_bytes()
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NOTHING: Final = ()


class ByteLevel:
    """Characters that stand for bytes, read as UTF-8; what is no UTF-8 becomes U+FFFD."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: str) -> Iterable[str]:
        try:
            data = bytes([_BYTE_OF[char] for char in piece])
        except KeyError:  # an added token, written as itself
            data = piece.encode()
        return (self._utf8.decode(data),)

    def finish(self) -> Iterable[str]:
        return (self._utf8.decode(b"", final=True),)


class ByteFallback:
    """Tokens like ``<0xF0>`` stand for bytes; a run of them that is no UTF-8 becomes one U+FFFD per byte.

    Whether a run is UTF-8 is known at its end, so it waits until then.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, piece: str) -> Iterable[str]:
        if byte := _BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(byte[1], 16))
            return _NOTHING
        return (*self.finish(), piece)

    def finish(self) -> Iterable[str]:
        run, self._run = bytes(self._run), bytearray()
        if not run:
            return _NOTHING
        try:
            return (run.decode(),)
        except UnicodeDecodeError:
            return ("\ufffd" * len(run),)


class Replace:
    """One string for another, in every piece."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern, self._content = pattern, content

    def push(self, piece: str) -> Iterable[str]:
        return (piece.replace(self._pattern, self._content),)

    def finish(self) -> Iterable[str]:
        return _NOTHING


class StripStart:
    """Drops up to `most` times `content` from the start of the text."""

    def __init__(self, content: str, most: int) -> None:
        self._content, self._left = content, most

    def push(self, piece: str) -> Iterable[str]:
        while self._left and piece:
            if not piece.startswith(self._content):
                self._left = 0
                break
            piece, self._left = piece[1:], self._left - 1
        return (piece,)

    def finish(self) -> Iterable[str]:
        return _NOTHING


class Metaspace:
    """A mark for every space; the first token's marks were put there by the tokenizer and are dropped."""

    def __init__(self, mark: str, first: str) -> None:
        self._mark, self._space = mark, first

    def push(self, piece: str) -> Iterable[str]:
        space, self._space = self._space, " "
        return (piece.replace(self._mark, space),)

    def finish(self) -> Iterable[str]:
        return _NOTHING


class Spaced:
    """What a tokenizer without a decoder does: a space between any two tokens."""

    def __init__(self) -> None:
        self._space = ""

    def push(self, piece: str) -> Iterable[str]:
        space, self._space = self._space, " "
        return (space + piece,)

    def finish(self) -> Iterable[str]:
        return _NOTHING


class _Part(NamedTuple):
    makers: list[StageMaker]
    fused: bool  # whether what comes out is one text rather than one piece per token


class Decoder:
    """A decoder as tokenizer.json describes it; `start` begins a text.

    Args:
        spec: The file's "decoder" entry; None when it has none.

    Raises:
        Unsupported: A stage is of a kind, or in a place, that cannot be followed token by token.
    """

    def __init__(self, spec: Spec | None) -> None:
        self._makers = [Spaced] if spec is None else _compile(spec, _Part([], fused=False)).makers

    def start(self) -> DecodedText:
        return DecodedText([make() for make in self._makers])


class DecodedText:
    """One text on its way through the stages."""

    def __init__(self, stages: list[Stage]) -> None:
        self._stages = stages

    def push(self, token: str) -> str:
        return self._through(self._stages, (token,))

    def finish(self) -> str:
        return "".join(
            self._through(self._stages[place:], stage.finish())
            for place, stage in enumerate(self._stages, start=1)
        )

    @staticmethod
    def _through(stages: list[Stage], pieces: Iterable[str]) -> str:
        for stage in stages:
            pieces = [out for piece in pieces for out in stage.push(piece)]
        return "".join(pieces)


def _compile(spec: Spec, before: _Part) -> _Part:
    if spec["type"] == "Sequence":
        for inner in spec["decoders"]:
            before = _compile(inner, before)
        return before
    maker = _MAKERS.get(spec["type"])
    part = maker(spec, before) if maker else None
    if part is None:
        raise Unsupported(
            f"the tokenizer's decoder has a stage {spec['type']!r} that cannot be streamed exactly; "
            "supported are ByteLevel, Metaspace, and Replace, ByteFallback, Fuse, Strip in sentencepiece's order",
            reason="TOKENIZER_UNSUPPORTED",
        )
    return _Part([*before.makers, *part.makers], part.fused)


def _byte_level(_: Spec, before: _Part) -> _Part | None:
    return None if before.fused else _Part([ByteLevel], fused=True)


def _byte_fallback(_: Spec, before: _Part) -> _Part | None:
    return None if before.fused else _Part([ByteFallback], fused=False)


def _fuse(_: Spec, before: _Part) -> _Part | None:  # noqa: ARG001  # of the table's type
    return _Part([], fused=True)


def _replace(spec: Spec, before: _Part) -> _Part | None:
    pattern = spec["pattern"].get("String")
    if not pattern or (before.fused and len(pattern) > 1):  # could match across two pieces
        return None
    return _Part([lambda: Replace(pattern, spec["content"])], before.fused)


def _strip(spec: Spec, before: _Part) -> _Part | None:
    if not before.fused or spec["stop"] or len(spec["content"]) != 1:
        return None
    return _Part([lambda: StripStart(spec["content"], spec["start"])], fused=True)


def _metaspace(spec: Spec, before: _Part) -> _Part | None:
    if before.makers or before.fused:
        return None
    first = " " if spec.get("prepend_scheme") == "never" else ""
    return _Part([lambda: Metaspace(spec["replacement"], first)], fused=False)


_MAKERS: Final[dict[str, Callable[[Spec, _Part], _Part | None]]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Fuse": _fuse,
    "Replace": _replace,
    "Strip": _strip,
    "Metaspace": _metaspace,
}

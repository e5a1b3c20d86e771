"""A decoded JSON object whose fields are taken one by one, each checked, none left over."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")

_NAMES = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


class Fields:
    """Takes typed fields out of a JSON value.

    Args:
        value: Whatever JSON held.
        where: What it is, for messages ("header", "tensor 7").

    Raises:
        ValueError: From every method: a field is missing, of another type, or unknown.
    """

    def __init__(self, value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where} is not an object")  # noqa: TRY004  # a fault of the data, not of the caller
        self._left: dict[str, Any] = dict(value)
        self._where = where

    def has(self, name: str) -> bool:
        """Whether the field is there, and not taken yet."""
        return name in self._left

    def take(self, name: str, kind: type[T]) -> T:
        if name not in self._left:
            raise ValueError(f"{self._where} has no {name}")
        value = self._left.pop(name)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:  # exact: JSON's true must not pass for 1
            raise ValueError(f"{name} of {self._where} is not {_NAMES[kind]}")
        return value

    def take_or_none(self, name: str, kind: type[T]) -> T | None:
        """As `take`, and JSON's null is allowed."""
        if name in self._left and self._left[name] is None:
            del self._left[name]
            return None
        return self.take(name, kind)

    def take_count(self, name: str, least: int = 0, most: int = 1 << 53) -> int:
        value = self.take(name, int)
        if not least <= value <= most:
            raise ValueError(f"{name} of {self._where} is {value}, not within {least} to {most}")
        return value

    def finish(self) -> None:
        """Nothing may be left."""
        if self._left:
            raise ValueError(f"{self._where} has unknown fields: {', '.join(sorted(self._left)[:3])}")

"""How much one layout of a chat template may do: what a template could make of little is refused beforehand."""

from __future__ import annotations

import contextlib
import contextvars
import re
from collections.abc import Iterable, Iterator, MappingView
from typing import Any, Final, cast

import jinja2
from jinja2.utils import Namespace

MAX_STEPS: Final = (
    1_000_000  # of one layout: turns of loops, calls, filters, and characters or items of values
)
CHARS_PER_STEP: Final = 256
_ITEMS_PER_STEP: Final = 16
_MAX_CHARS: Final = 16 << 20  # of one value, or its items
_MAX_COMPARISONS: Final = 1 << 28
_MAX_BITS: Final = 4096  # of a whole number
_MAX_NUMBER: Final = 1000  # to indent or round by
_MAX_SEPARATOR: Final = 256  # characters
_WIDE: Final = re.compile(r"\d{4}|\*|\{[^{}]*\{")  # a width of thousands, or one that comes from elsewhere


class TooCostly(jinja2.TemplateError):
    """The template asks for more than any chat template needs."""


class _Meter:
    def __init__(self) -> None:
        self.left = MAX_STEPS


_METER: Final[contextvars.ContextVar[_Meter]] = contextvars.ContextVar("template_meter")


@contextlib.contextmanager
def metered() -> Iterator[None]:
    """Within it a template may be laid out, once; outside every spending raises LookupError."""
    token = _METER.set(_Meter())
    try:
        yield
    finally:
        _METER.reset(token)


def spend(steps: int) -> None:
    """Takes steps off what is left.

    Raises:
        TooCostly: There are not so many.
    """
    meter = _METER.get()
    meter.left -= steps
    if meter.left < 0:
        raise TooCostly(f"it takes more than {MAX_STEPS} steps")


def weigh(value: Any) -> Any:
    """Spends for the value as it stands, and gives it back."""
    if isinstance(value, int):
        _check_bits(value.bit_length())
    elif isinstance(value, str | bytes | list | tuple | dict):
        check_chars(len(value))
        spend(1 + len(value) // (CHARS_PER_STEP if isinstance(value, str | bytes) else _ITEMS_PER_STEP))
    return value


def weigh_all(value: Any) -> Any:
    """Spends for the value and all that is in it, as often as it is in there; gives it back."""
    weigh(value)
    if isinstance(value, Namespace):
        raise TooCostly("it prints or passes on a namespace")
    if isinstance(value, range):
        spend(len(value))
    elif isinstance(value, dict):
        for pair in value.items():
            weigh_all(pair)
    elif isinstance(value, list | tuple | MappingView):
        spend(len(value))
        for item in cast("Iterable[Any]", value):
            weigh_all(item)
    return value


def check_operands(operator: str, left: Any, right: Any) -> None:
    """Before the operator works: powers, products, repetitions and formats stay small."""
    weigh(left)
    weigh(right)
    if operator == "**" and isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * max(right, 0))
    elif operator == "*":
        _check_product(left, right)
    elif operator == "%" and isinstance(left, str | bytes):
        check_format(left, "%", right)


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    for sequence, count in ((left, right), (right, left)):
        if isinstance(count, int) and hasattr(sequence, "__len__"):
            check_chars(len(sequence) * count)


def check_format(pattern: Any, sign: str, arguments: Any) -> None:
    """Before a text is formatted: no great widths, and no great argument many times."""
    text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
    if _WIDE.search(text):
        raise TooCostly("it formats to a width of thousands, or to one that is computed")
    before = _METER.get().left
    weigh_all(arguments)
    check_chars(text.count(sign) * (_MAX_NUMBER + (before - _METER.get().left) * CHARS_PER_STEP))


def check_replacement(text: Any, old: Any = None, new: Any = None) -> None:
    """Before a text's parts are replaced."""
    if all(isinstance(each, str | bytes) for each in (text, old, new)):
        check_chars((len(text) // max(len(old), 1) + 1) * len(new))


def check_search(text: Any, sought: Any = None) -> None:
    """Before a search that may compare every character of both."""
    if isinstance(sought, str | bytes) and len(text) * len(sought) > _MAX_COMPARISONS:
        raise TooCostly("it searches a long text for another")


def check_indentation(text: Any, width: Any = 4) -> None:
    """Before every line of a text is indented."""
    check_chars(str(text).count("\n") * (len(width) if isinstance(width, str) else int(width)))


def check_modest(arguments: Iterable[Any]) -> None:
    """Numbers to indent or round by and separators are those that a person would write."""
    for each in arguments:
        if isinstance(each, int) and abs(each) > _MAX_NUMBER:
            raise TooCostly(f"it indents or rounds by {_MAX_NUMBER} and more")
        if isinstance(each, str | bytes) and len(each) > _MAX_SEPARATOR:
            raise TooCostly(f"it puts more than {_MAX_SEPARATOR} characters between things")
        if isinstance(each, tuple | list):
            check_modest(each)


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TooCostly(f"it computes a number of more than {_MAX_BITS} bits")


def check_chars(count: int) -> None:
    """Before a value of so many characters or items is made."""
    if count > _MAX_CHARS:
        raise TooCostly(f"it makes a value of more than {_MAX_CHARS} characters or items")

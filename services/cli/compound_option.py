"""Several options of the command line that are one parameter of a command."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

R = TypeVar("R")


def compound(parameter: str, make: Callable[..., Any]) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Gives a command the options of `make`, whose result it is called with as `parameter`.

    Args:
        parameter: A keyword-only parameter of the command.
        make: Takes keyword-only parameters; it may have such a parameter itself.
    """
    options = inspect.signature(make, eval_str=True).parameters

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        own = inspect.signature(command, eval_str=True)
        kept = [each for each in own.parameters.values() if each.name != parameter]

        @functools.wraps(command)
        def called(**given: Any) -> R:
            made = make(**{name: given.pop(name) for name in options if name in given})
            return command(**given, **{parameter: made})

        shown = own.replace(parameters=[*kept, *options.values()])
        called.__signature__ = shown  # type: ignore[attr-defined]  # where inspect, and so typer, looks
        called.__annotations__ = {each.name: each.annotation for each in shown.parameters.values()}
        return called

    return decorate

"""The sandbox that chat templates run in: jinja2's immutable one, with a meter, and nothing computed beforehand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, cast

from jinja2 import Environment, nodes
from jinja2.compiler import CodeGenerator, Frame, operators
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.common.text.template_meter import (
    CHARS_PER_STEP,
    TooCostly,
    check_format,
    check_indentation,
    check_modest,
    check_operands,
    check_replacement,
    check_search,
    spend,
    weigh,
    weigh_all,
)

# What no chat template needs and what makes much of little.
_NO_FILTERS: Final = frozenset(
    {"batch", "center", "filesizeformat", "pprint", "slice", "striptags", "urlize", "wordwrap", "xmlattr"}
)
_NO_METHODS: Final = frozenset(
    {"center", "encode", "expandtabs", "ljust", "rjust", "to_bytes", "translate", "zfill"}
)
# Filters that look at a list or an object from outside; the others go through all that is in it.
_OUTER: Final = frozenset(
    {"attr", "count", "d", "default", "first", "items", "last", "length", "list", "random", "reverse"}
)
_LAZY: Final = frozenset({"map", "reject", "rejectattr", "select", "selectattr"})
_MODEST: Final = frozenset({"indent", "join", "round", "tojson"})
_SEARCHES: Final = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})
_CALL_STEPS: Final = 4  # a call takes as long as some turns of a loop
# Tests that look at all of a value.
_COMPARISONS: Final = frozenset(
    {
        "in",
        "eq",
        "==",
        "equalto",
        "ne",
        "!=",
        "lt",
        "<",
        "lessthan",
        "le",
        "<=",
        "gt",
        ">",
        "greaterthan",
        "ge",
        ">=",
    }
    | {"lower", "upper"}
)
_PASSED: Final = (Context, EvalContext, Environment)  # what jinja2 itself hands to filters


class _MeteredCode(CodeGenerator):
    """Writes code that spends for each turn of a loop and for values that are put together or cut."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        """jinja2 would compute constants here, however long that takes."""
        if not isinstance(node, nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802  # jinja2's
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(_turn(text)))
        if node.test is not None:
            node.test = nodes.And(_turn(0), node.test)
        super().visit_For(node, frame)

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:  # noqa: N802  # jinja2's
        if isinstance(node.node, nodes.EnvironmentAttribute):
            self.write(f"environment.{node.node.name}({node.args[0].as_const()})")
        else:
            super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # jinja2's
        self.write("environment.weigh_all(")
        super().visit_Concat(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802  # jinja2's
        self.write("environment.weigh(" if isinstance(node.arg, nodes.Slice) else "(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:  # noqa: N802  # jinja2's
        self.write(f" {operators[node.op]} environment.weigh_all(")
        self.visit(node.expr, frame)
        self.write(")")


def _turn(text: int) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute("turn"), [nodes.Const(text)], [], None, None)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Runs templates within `template_meter.metered`.

    Args:
        filters: More filters, by name.
        options: Of jinja2's environment.

    Raises:
        TooCostly: While a template runs: it asks for too much.
    """

    code_generator_class = _MeteredCode
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})
    weigh = staticmethod(weigh)
    weigh_all = staticmethod(weigh_all)

    def __init__(self, filters: Mapping[str, Callable[..., Any]], **options: Any) -> None:
        super().__init__(optimized=False, finalize=weigh_all, **options)
        del self.globals["lipsum"]
        known = {**self.filters, **filters}
        self.filters = {name: _metered(name, known[name]) for name in known.keys() - _NO_FILTERS}
        self.tests.update(
            {name: _weighing(cast("Callable[..., Any]", self.tests[name])) for name in _COMPARISONS}
        )

    @staticmethod
    def turn(text: int) -> bool:
        """A turn of a loop that holds that many characters of plain text."""
        spend(1 + text // CHARS_PER_STEP)
        return True

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        spend(1)
        check_operands(operator, left, right)
        return weigh(super().call_binop(context, operator, left, right))

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        spend(_CALL_STEPS + len(args) + len(kwargs))
        for each in args:
            weigh(each)
        args = _settled(args) if getattr(called, "__name__", "") == "join" else args
        _check_method(getattr(called, "__wrapped__", called), args, kwargs)
        return weigh(super().call(context, called, *args, **kwargs))


def _check_method(called: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """What is called, if it is a method of a text or a number."""
    owner, name = getattr(called, "__self__", None), getattr(called, "__name__", "")
    if isinstance(owner, list | tuple | range | dict):
        (weigh_all if name in ("count", "index") else weigh)(owner)
    if not isinstance(owner, str | bytes | int):
        return
    weigh_all((owner, *args))
    if name in _NO_METHODS:
        raise TooCostly(f"it calls {name}, which no chat template needs")
    if name in _SEARCHES and not isinstance(owner, int):
        check_search(owner, *[*args, *kwargs.values()][:1])
    elif name == "replace":
        check_replacement(owner, *args[:2])
    elif name == "join":
        check_modest((owner,))
    elif name in ("format", "format_map"):
        check_format(owner, "{", (args, dict(kwargs)))


def _metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def metered(*args: Any, **kwargs: Any) -> Any:
        spend(1)
        if name in _LAZY:
            spend(sum(len(each) for each in args[1:2] if hasattr(each, "__len__")))
        elif name not in _OUTER:
            args = _settled(args)
            _check_filter(name, [each for each in args if not isinstance(each, _PASSED)], kwargs)
        return weigh(function(*args, **kwargs))

    return metered


def _settled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(list(each) if isinstance(each, Iterator) else each for each in args)


def _check_filter(name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    weigh_all(args)
    if name in _MODEST:
        check_modest((*args[1:], *kwargs.values()))
    if name == "indent":
        check_indentation(args[0], kwargs.get("width", *args[1:2] or [4]))
    elif name == "trim":
        check_search(str(args[0]), kwargs.get("chars", *args[1:2] or [None]))
    elif name == "replace":
        old, new = (kwargs.get(key, *args[i : i + 1] or [""]) for i, key in ((1, "old"), (2, "new")))
        check_replacement(str(args[0]), str(old), str(new))
    elif name == "format":
        check_format(str(args[0]), "%", (args[1:], kwargs))


def _weighing(test: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(test)
    def weighing(*args: Any) -> Any:
        weigh_all(args)
        return test(*args)

    return weighing

"""The pickle inside a PyTorch zip file, read without running any of it.

Pickle is a program for a small stack machine that may import and call whatever it names. Here its opcodes are
interpreted by a table of our own: containers, texts, numbers, and the few names that stand for plain records.
Nothing is imported and nothing of the file's choosing is called.
"""

from __future__ import annotations

import dataclasses
import pickletools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, NoReturn

from services.common.errors import CorruptData, Unsupported

MAX_OPCODES: Final = 10_000_000

_ORDERED_DICT: Final = "collections OrderedDict"
_REBUILD: Final = "torch._utils _rebuild_tensor_v2"
_PARAMETERS: Final = frozenset(  # a tensor, and what only training needs of it
    {"torch._utils _rebuild_parameter", "torch._utils _rebuild_parameter_with_state"}
)
_VALUES: Final = frozenset({"data", "real", "imag"})  # attributes of a tensor that are its values
STORAGES: Final = {  # torch's storage classes and the bytes of an element
    "torch BFloat16Storage": 2,
    "torch HalfStorage": 2,
    "torch FloatStorage": 4,
    "torch DoubleStorage": 8,
    "torch LongStorage": 8,
    "torch IntStorage": 4,
    "torch ShortStorage": 2,
    "torch CharStorage": 1,
    "torch ByteStorage": 1,
    "torch BoolStorage": 1,
}
_KNOWN: Final = frozenset({_ORDERED_DICT, _REBUILD, *_PARAMETERS, *STORAGES})


class Global(NamedTuple):
    """A name that the pickle would have imported."""

    name: str


class Storage(NamedTuple):
    """The bytes of one or more tensors: record ``data/{key}`` of the zip, `elements` long."""

    kind: str
    key: str
    elements: int


class TorchTensor(NamedTuple):
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    is_lazy: bool = False  # torch would negate or conjugate the values once it has read them


class _BeyondWeightsError(Exception):
    """What the pickle holds, or would do, that weights have no need of."""


class _Mark:
    """Where a group of values begins on the stack."""


_MARK: Final = _Mark()


@dataclasses.dataclass(slots=True)
class _Machine:
    stack: list[Any] = dataclasses.field(default_factory=list)
    memo: dict[int, Any] = dataclasses.field(default_factory=dict)

    def pop_to_mark(self) -> list[Any]:
        values: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]


def read_pickle(file: str, content: bytes) -> Any:
    """The value: dicts, lists, tuples, texts, numbers, truths, None, and `TorchTensor`.

    Args:
        file: The name of the zip file, for messages.
        content: Its record data.pkl.

    Raises:
        CorruptData: It is cut short or nonsense.
        Unsupported: It holds more than weights; the message names what it would import or do.
    """
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            if count > MAX_OPCODES:
                raise ValueError("too long")
            if opcode.name == "STOP":
                return machine.stack.pop()
            _OPCODES.get(opcode.name, _refuse)(machine, argument)
        raise ValueError("no end")
    except _BeyondWeightsError as found:
        raise Unsupported(
            f"{file}: its data.pkl holds {found}, and no code of a checkpoint is ever run; save the weights alone: "
            "torch.save(model.state_dict(), FILE), or save_pretrained with safe_serialization=True",
            reason="PICKLE_REFUSED",
        ) from None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError) as fault:
        raise CorruptData(f"{file}: its data.pkl cannot be read ({fault!r}); fetch the file again") from None


def _refuse(_machine: _Machine, argument: Any) -> NoReturn:
    raise _BeyondWeightsError(f"an opcode outside of the allowed ones ({str(argument)[:80]!r})")


def _push(machine: _Machine, argument: Any) -> None:
    machine.stack.append(argument)


def _constant(make: Callable[[], Any]) -> Callable[[_Machine, Any], None]:
    return lambda machine, _: machine.stack.append(make())


def _nothing(_machine: _Machine, _argument: Any) -> None:
    """Protocol and frame headers say nothing that is needed."""


def _remember(machine: _Machine, argument: Any) -> None:
    machine.memo[len(machine.memo) if argument is None else argument] = machine.stack[-1]


def _recall(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[argument])


def _import(machine: _Machine, argument: Any) -> None:
    if argument is None:  # STACK_GLOBAL takes its two names from the stack
        name, module = machine.stack.pop(), machine.stack.pop()
        if type(module) is not str or type(name) is not str:
            raise TypeError("a name that is no text")
        argument = f"{module} {name}"
    if argument not in _KNOWN:
        raise _BeyondWeightsError(f"the name {argument.replace(' ', '.')[:120]}")
    machine.stack.append(Global(argument))


def _reduce(machine: _Machine, _argument: Any) -> None:
    arguments, function = machine.stack.pop(), machine.stack.pop()
    name = function.name if isinstance(function, Global) else ""
    if name == _ORDERED_DICT and not arguments:
        machine.stack.append({})
    elif name == _REBUILD:
        machine.stack.append(_rebuild(*arguments))
    elif name in _PARAMETERS:
        machine.stack.append(_unwrap(*arguments))
    else:
        raise _BeyondWeightsError("a call of what is no tensor")


def _rebuild(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    _requires_grad: Any = None,
    _hooks: Any = None,
    metadata: Any = None,
) -> TorchTensor:
    """A tensor; whether it was trained, and by which hooks, changes no value."""
    numbers = (offset, *shape, *strides)
    if not (isinstance(storage, Storage) and len(shape) == len(strides)):
        raise TypeError("a tensor without a storage")
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in numbers):
        raise ValueError("a tensor whose shape is not counts")
    return TorchTensor(storage, offset, tuple(shape), tuple(strides), bool(metadata))


def _unwrap(parameter: Any, _requires_grad: Any = None, _hooks: Any = None, state: Any = None) -> TorchTensor:
    """A parameter's tensor; its hooks are not needed, nor are its attributes, unless one would set its values."""
    if not isinstance(parameter, TorchTensor):
        raise TypeError("a parameter without a tensor")
    for attributes in state if isinstance(state, tuple) else (state,):
        if isinstance(attributes, dict) and not _VALUES.isdisjoint(attributes):
            raise _BeyondWeightsError("a parameter that is given other values")
    return parameter


def _load_storage(machine: _Machine, _argument: Any) -> None:
    kind, storage, key, _, elements = machine.stack.pop()
    if kind != "storage" or not isinstance(storage, Global) or storage.name not in STORAGES:
        raise TypeError("a reference to what is no storage")
    if type(key) is not str or type(elements) is not int or not 0 <= elements < 1 << 48:
        raise TypeError("a storage without key or length")
    machine.stack.append(Storage(storage.name, key, elements))


def _build(machine: _Machine, _argument: Any) -> None:
    """Attributes of a dict (torch keeps versions there) are not needed."""
    machine.stack.pop()
    if type(machine.stack[-1]) is not dict:
        raise _BeyondWeightsError("the state of what is no dict")


def _set_items(machine: _Machine, _argument: Any) -> None:
    _fill(machine, machine.pop_to_mark())


def _set_item(machine: _Machine, _argument: Any) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _fill(machine, [key, value])


def _fill(machine: _Machine, flat: list[Any]) -> None:
    target = machine.stack[-1]
    if type(target) is not dict or len(flat) % 2:
        raise TypeError("items for what is no dict")
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if type(key) not in (str, int):
            raise TypeError("a key that is neither text nor number")
        target[key] = value


def _append(machine: _Machine, _argument: Any) -> None:
    value = machine.stack.pop()
    _list_at_top(machine).append(value)


def _appends(machine: _Machine, _argument: Any) -> None:
    values = machine.pop_to_mark()
    _list_at_top(machine).extend(values)


def _list_at_top(machine: _Machine) -> list[Any]:
    target = machine.stack[-1]
    if type(target) is not list:
        raise TypeError("items for what is no list")
    return target


def _tuple_of(count: int) -> Callable[[_Machine, Any], None]:
    def make(machine: _Machine, _argument: Any) -> None:
        if len(machine.stack) < count:
            raise IndexError("a tuple of too little")
        values = tuple(machine.stack[len(machine.stack) - count :])
        del machine.stack[len(machine.stack) - count :]
        machine.stack.append(values)

    return make


def _tuple_to_mark(machine: _Machine, _argument: Any) -> None:
    machine.stack.append(tuple(machine.pop_to_mark()))


_OPCODES: Final[dict[str, Callable[[_Machine, Any], None]]] = {
    **dict.fromkeys(("PROTO", "FRAME"), _nothing),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINFLOAT"), _push),
    **dict.fromkeys(("BININT", "BININT1", "BININT2", "LONG1"), _push),
    "NONE": _constant(lambda: None),
    "NEWTRUE": _constant(lambda: True),
    "NEWFALSE": _constant(lambda: False),
    "MARK": _constant(lambda: _MARK),
    "EMPTY_DICT": _constant(dict),
    "EMPTY_LIST": _constant(list),
    "EMPTY_TUPLE": _constant(tuple),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT", "MEMOIZE"), _remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), _recall),
    **dict.fromkeys(("GLOBAL", "STACK_GLOBAL"), _import),
    "REDUCE": _reduce,
    "BINPERSID": _load_storage,
    "BUILD": _build,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "APPEND": _append,
    "APPENDS": _appends,
    "TUPLE1": _tuple_of(1),
    "TUPLE2": _tuple_of(2),
    "TUPLE3": _tuple_of(3),
    "TUPLE": _tuple_to_mark,
}

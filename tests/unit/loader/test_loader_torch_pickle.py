"""The pickle of a PyTorch zip file is read as data, whatever it would do; no code of it runs."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._utils import _rebuild_parameter, _rebuild_parameter_with_state

from services.common.errors import CorruptData, HalogenError, Unsupported
from services.loader.torch_file import read_table
from services.loader.torch_pickle import read_pickle


class Runs:
    """Unpickled by pickle itself, it would leave a file."""

    def __init__(self, *call: Any) -> None:
        self._call = call

    def __reduce__(self) -> Any:
        return self._call[0], self._call[1:]


HOSTILE: dict[str, Callable[[Path], Any]] = {
    "os.system": lambda mark: Runs(os.system, f"touch {mark}"),
    "eval": lambda mark: Runs(eval, f"open({str(mark)!r}, 'w')"),
    "open": lambda mark: Runs(open, str(mark), "w"),
    "getattr": lambda mark: Runs(getattr, "", "upper"),
    "class": lambda mark: io.BytesIO(b"x"),
    "set": lambda mark: {1, 2},
    "inside": lambda mark: {"w": torch.ones(2), "deep": [{"x": Runs(os.mkdir, str(mark))}]},
    "hook of a parameter": lambda mark: Runs(_rebuild_parameter, torch.ones(2), True, {0: Runs(os.mkdir, str(mark))}),
    "state of a parameter": lambda mark: Runs(_rebuild_parameter_with_state, torch.ones(2), True, {}, Runs(os.mkdir, str(mark))),
    "values of a parameter": lambda mark: Runs(_rebuild_parameter_with_state, torch.ones(2), True, {}, {"data": torch.zeros(2)}),
    "slots of a parameter": lambda mark: Runs(_rebuild_parameter_with_state, torch.ones(2), True, {}, (None, {"real": torch.zeros(2)})),
    "parameter of what is called": lambda mark: Runs(_rebuild_parameter, Runs(os.mkdir, str(mark)), True, {}),
    "ordered dict from iterable": lambda mark: Runs(collections.OrderedDict, [("a", Runs(os.mkdir, str(mark)))]),
}  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("case", HOSTILE)
def test_no_code_is_run(tmp_path: Path, case: str, protocol: int) -> None:
    """The name that it would import is refused, and the file that has it is said.

    Fault injection: `_KNOWN` holds "builtins eval" and _reduce calls it; `_VALUES` is empty.
    """
    mark = tmp_path / "mark"
    torch.save(HOSTILE[case](mark), tmp_path / "m.bin", pickle_protocol=protocol)
    with pytest.raises(Unsupported, match=r"m\.bin: .*no code of a checkpoint is ever run; save") as refused:
        read_table(tmp_path / "m.bin")
    assert ("PICKLE_REFUSED", False) == (refused.value.reason, mark.exists())


def doubled(times: int) -> bytes:
    """A tuple of itself twice, `times` over: small here, 2^times leaves when walked."""
    return b"\x80\x02)" + b"2\x86".replace(b"2", b"q\x00h\x00") * times


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02}",
        b"\x80\x02h\x07.",
        b"\x80\x02u.",
        b"\x80\x02)s.",
        b"\x80\x02K\x01K\x02K\x03s.",
        b"\x80\x02R.",
        b"\x80\x02ccollections\nOrderedDict\n)bb.",
        b"\x80\x02K\x01Q.",
        b"\x80\x02X\xff\xff\xff\xff.",
        b"\x80\x02(" + b"ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03K\x04tR.",
        b"\x80\x02}" + doubled(60)[2:] + b"K\x01s.",
        b"\x80\x04" + doubled(60)[2:] + doubled(60)[2:] + b"\x93.",
    ],
)
def test_a_nonsensical_pickle_is_refused(content: bytes) -> None:
    """At once, also where walking it would take for ever."""
    with pytest.raises(HalogenError):
        read_pickle("m.bin", content)


GOOD = pickle.dumps({"a": [1, 2.5, "x", None, True, (1, 2, 3, 4)], "b": {"c": -7}}, protocol=4)


@given(st.one_of(st.binary(max_size=64), st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255))))
@settings(max_examples=300, deadline=None)
def test_damage_ends_in_an_error_of_ours(damage: Any) -> None:
    """Random bytes, and a good pickle with one byte changed: a value or one of our errors, nothing else."""
    damaged = damage
    if isinstance(damage, tuple):
        damaged = GOOD[: damage[0]] + bytes([damage[1]]) + GOOD[damage[0] + 1 :]
    with contextlib.suppress(HalogenError):
        read_pickle("m.bin", damaged)


def with_attributes(tensor: torch.Tensor) -> torch.nn.Parameter:
    """As some frameworks mark their parameters; torch keeps such marks beside the tensor."""
    parameter = torch.nn.Parameter(tensor)
    parameter.__dict__.update(_is_initialized=True, shard={"axis": 0})
    return parameter


@pytest.mark.parametrize("wrap", [torch.nn.Parameter, with_attributes])
def test_a_parameter_is_its_tensor(
    tmp_path: Path, wrap: Callable[[torch.Tensor], torch.nn.Parameter]
) -> None:
    """As in what is saved of `named_parameters()`: values, shape, and a view's own place.

    Fault injection: turns red when `_PARAMETERS` is empty, or `_unwrap` gives another tensor.
    """
    whole = torch.arange(12, dtype=torch.float32).reshape(4, 3)
    torch.save({"a": wrap(whole[1:3]), "b": wrap(torch.ones(5))}, tmp_path / "m.bin")
    table = read_table(tmp_path / "m.bin").tensors
    found = {
        name: (each.shape, b"".join(bytes(piece) for piece in each.pieces())) for name, each in table.items()
    }
    assert {
        "a": ((2, 3), whole[1:3].numpy().tobytes()),
        "b": ((5,), torch.ones(5).numpy().tobytes()),
    } == found


@pytest.mark.parametrize("inner", ["text", 7, {"a": 1}, (torch.ones(2),), None])
def test_a_parameter_of_no_tensor_is_refused(tmp_path: Path, inner: Any) -> None:
    """By its file. Fault injection: turns red when `_unwrap` gives whatever it was given."""
    torch.save({"w": torch.ones(2), "a": Runs(_rebuild_parameter, inner, True, {})}, tmp_path / "m.bin")
    with pytest.raises(CorruptData, match=r"m\.bin: .*a parameter without a tensor.*; fetch the file again"):
        read_table(tmp_path / "m.bin")

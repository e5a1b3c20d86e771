"""The C libraries' interface, mirrored: see native/llama.h. One is built for each instruction set, of the same sources."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from collections.abc import Mapping
from typing import Final, Literal

InstructionSet = Literal["avx512_bf16", "avx2"]

INSTRUCTION_SETS: Final[Mapping[InstructionSet, str]] = {  # the fastest first, with what people call them
    "avx512_bf16": "AVX-512 with BF16",
    "avx2": "AVX2 with FMA and F16C",
}

_STALE: Final = (
    "the native kernels are of another version; install the package again (in a checkout: make setup)"
)
_Pointer = ctypes.c_void_p
_Int = ctypes.c_int32


class Layer(ctypes.Structure):
    """struct halogen_layer."""

    _fields_ = tuple(
        (name, _Pointer)
        for name in ("attention_norm", "qkv", "qkv_bias", "output", "mlp_norm", "gate_up", "down")
    )


class Model(ctypes.Structure):
    """struct halogen_model."""

    _fields_ = (
        *((name, _Pointer) for name in ("embedding", "norm", "head")),
        ("layers", ctypes.POINTER(Layer)),
        *((name, _Pointer) for name in ("cos", "sin")),
        *((name, _Int) for name in ("layer_count", "hidden", "intermediate", "heads", "kv_heads")),
        *((name, _Int) for name in ("head_dim", "vocabulary", "is_bf16", "is_packed")),
        *((name, _Int) for name in ("kv_kind", "kv_head_bytes")),
        ("eps", ctypes.c_float),
    )


class Step(ctypes.Structure):
    """struct halogen_step."""

    _fields_ = (
        *((name, _Pointer) for name in ("token_ids", "positions", "rows", "tables", "sample_rows", "blocks")),
        ("block_bytes", ctypes.c_int64),
        *((name, _Int) for name in ("tokens", "sequences", "table_width", "samples")),
    )


class Cpu(ctypes.Structure):
    """struct halogen_cpu: what CPUID and XCR0 tell; see native/cpu.h."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("leaf1_ecx", "leaf7_ebx", "leaf7_1_eax", "xcr0"))


@functools.cache
def load_library(instructions: InstructionSet) -> ctypes.CDLL:
    """The library, its functions declared; calls into it release the interpreter's lock.

    Raises:
        OSError: It was not built: there was no C compiler when the package was installed, or it does not know them.
        ImportError: It was built from other sources than these.
    """
    library = ctypes.CDLL(str(importlib.resources.files(__package__) / f"_{instructions}.so"))
    check_mirrored(library)
    _declare(library)
    return library


def runs_here(library: ctypes.CDLL) -> bool:
    """Whether this CPU has the instructions, and its system keeps their registers."""
    cpu = Cpu()
    library.halogen_read_cpu(cpu)
    return bool(library.halogen_runs_on(cpu))


def check_mirrored(library: ctypes.CDLL) -> None:
    """Raises ImportError unless the library's structures are as large as ours: calls into another would crash."""
    ours = [ctypes.sizeof(mirror) for mirror in (Layer, Model, Step)]
    if not hasattr(library, "halogen_struct_bytes"):
        raise ImportError(_STALE)
    library.halogen_struct_bytes.restype = ctypes.c_int64
    if ours != [library.halogen_struct_bytes(which) for which in range(len(ours))]:
        raise ImportError(_STALE)


def _declare(library: ctypes.CDLL) -> None:
    step = (_Pointer, ctypes.POINTER(Model), ctypes.POINTER(Step))
    for name, result, *arguments in (
        ("halogen_read_cpu", None, ctypes.POINTER(Cpu)),
        ("halogen_runs_on", _Int, ctypes.POINTER(Cpu)),
        ("halogen_open_team", _Pointer, _Int),
        ("halogen_close_team", None, _Pointer),
        ("halogen_scratch_bytes", ctypes.c_int64, *step),
        ("halogen_step_llama", None, *step, _Pointer, _Pointer),
        ("halogen_attend", None, *step, _Pointer, _Pointer, _Pointer),
        ("halogen_linear", None, *(_Pointer,) * 4, *(_Int,) * 5),
        ("halogen_packed_linear", None, *(_Pointer,) * 4, *(_Int,) * 4, _Pointer),
        ("halogen_read", ctypes.c_uint64, _Pointer, _Pointer, ctypes.c_int64),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments

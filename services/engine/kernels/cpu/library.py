"""The C library's interface, mirrored: see native/llama.h."""

from __future__ import annotations

import ctypes
import functools
import importlib.resources
from typing import Final

_NAME: Final = "_native.so"
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
        ("eps", ctypes.c_float),
    )


class Step(ctypes.Structure):
    """struct halogen_step."""

    _fields_ = (
        *((name, _Pointer) for name in ("token_ids", "positions", "rows", "tables", "sample_rows", "blocks")),
        ("block_bytes", ctypes.c_int64),
        *((name, _Int) for name in ("tokens", "sequences", "table_width", "samples")),
    )


@functools.cache
def load_library() -> ctypes.CDLL:
    """The library, its functions declared; calls into it release the interpreter's lock.

    Raises:
        OSError: It was not built: there was no C compiler when the package was installed.
        ImportError: It was built from other sources than these.
    """
    library = ctypes.CDLL(str(importlib.resources.files(__package__) / _NAME))
    check_mirrored(library)
    library.halogen_is_supported.restype = _Int
    library.halogen_scratch_bytes.restype = ctypes.c_int64
    library.halogen_open_team.restype = _Pointer
    library.halogen_open_team.argtypes = (_Int,)
    library.halogen_close_team.restype = None
    library.halogen_close_team.argtypes = (_Pointer,)
    step = (_Pointer, ctypes.POINTER(Model), ctypes.POINTER(Step))
    library.halogen_scratch_bytes.argtypes = step
    library.halogen_step_llama.restype = None
    library.halogen_step_llama.argtypes = (*step, _Pointer, _Pointer)
    library.halogen_linear.restype = None
    library.halogen_linear.argtypes = (_Pointer,) * 4 + (_Int,) * 5
    library.halogen_read.restype = ctypes.c_uint64
    library.halogen_read.argtypes = (_Pointer, _Pointer, ctypes.c_int64)
    library.halogen_packed_linear.restype = None
    library.halogen_packed_linear.argtypes = (_Pointer,) * 4 + (_Int,) * 4 + (_Pointer,)
    return library


def check_mirrored(library: ctypes.CDLL) -> None:
    """Raises ImportError unless the library's structures are as large as ours: calls into another would crash."""
    ours = [ctypes.sizeof(mirror) for mirror in (Layer, Model, Step)]
    if not hasattr(library, "halogen_struct_bytes"):
        raise ImportError(_STALE)
    library.halogen_struct_bytes.restype = ctypes.c_int64
    if ours != [library.halogen_struct_bytes(which) for which in range(len(ours))]:
        raise ImportError(_STALE)

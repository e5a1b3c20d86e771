"""Which kernels are chosen: the fastest that the CPU, its system and the installation allow, or the set that is asked for."""

from __future__ import annotations

import ctypes
from collections.abc import MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.common.errors import Unsupported
from services.engine.kernels.choice import KernelChoice, choose_kernels
from services.engine.kernels.cpu import library, native_kernels
from services.engine.kernels.cpu.library import INSTRUCTION_SETS, Cpu, InstructionSet, load_library
from services.engine.kernels.protocol import Kernels

# FMA, OSXSAVE, AVX, F16C; AVX2; the kernel keeps SSE and AVX registers.
AVX2 = Cpu(leaf1_ecx=1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, leaf7_ebx=1 << 5, xcr0=0x07)
# The same with AVX-512 F, DQ, BW, VL and BF16, and all registers kept.
AVX512 = Cpu(
    leaf1_ecx=AVX2.leaf1_ecx,
    leaf7_ebx=1 << 5 | 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31,
    leaf7_1_eax=1 << 5,
    xcr0=0xE7,
)

LACKS_AVX512 = "avx512_bf16: this CPU, or its system, lacks AVX-512 with BF16"


def is_built(instructions: InstructionSet) -> bool:
    try:
        load_library(instructions)
    except OSError:
        return False
    return True


built = pytest.mark.skipif(
    not all(map(is_built, INSTRUCTION_SETS)), reason="the C libraries were not built: there was no C compiler"
)


def altered(cpu: Cpu, **fields: int) -> Cpu:
    return Cpu(**{name: fields.get(name, getattr(cpu, name)) for name, *_ in Cpu._fields_})


def chosen(choice: KernelChoice = "auto") -> tuple[Kernels, MutableMapping[str, Any]]:
    with capture_logs() as logs:
        kernels = choose_kernels(choice, 1)
    (event,) = logs
    assert "kernels_chosen" == event["event"]
    return kernels, event


def on_a_cpu_with(monkeypatch: pytest.MonkeyPatch, *has: InstructionSet) -> None:
    libraries = [load_library(name) for name in has]
    monkeypatch.setattr(native_kernels, "runs_here", lambda library: library in libraries)


@built
@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (AVX2, {"avx2"}),
        (AVX512, {"avx2", "avx512_bf16"}),
        (altered(AVX512, leaf7_1_eax=0), {"avx2"}),
        (altered(AVX512, xcr0=0x07), {"avx2"}),
        (altered(AVX512, leaf7_ebx=1 << 5 | 1 << 16), {"avx2"}),
        (altered(AVX2, xcr0=0x03), set()),
        (altered(AVX2, leaf1_ecx=AVX2.leaf1_ecx & ~(1 << 27)), set()),
        (altered(AVX2, leaf1_ecx=AVX2.leaf1_ecx & ~(1 << 29)), set()),
        (altered(AVX512, leaf1_ecx=AVX2.leaf1_ecx & ~(1 << 12)), set()),
        (altered(AVX2, leaf7_ebx=0), set()),
    ],
)
def test_a_set_runs_where_the_cpu_has_its_instructions_and_the_system_keeps_their_registers(
    cpu: Cpu, expected: set[str]
) -> None:
    """Both are asked at start, not found out by SIGILL; AVX-512 without BF16 makes do with AVX2.

    Fault injection: turns red when halogen_runs_on() leaves out XCR0, or any one instruction.
    """
    running = {name for name in INSTRUCTION_SETS if load_library(name).halogen_runs_on(ctypes.byref(cpu))}
    assert expected == running


@built
@pytest.mark.parametrize(
    ("has", "expected", "told"),
    [
        (("avx512_bf16", "avx2"), "avx512_bf16", ""),
        (("avx2",), "avx2", LACKS_AVX512),
        (
            (),
            "portable",
            f"{LACKS_AVX512}; avx2: this CPU, or its system, lacks AVX2 with FMA and F16C",
        ),
    ],
)
def test_the_fastest_set_that_can_run_is_chosen(
    has: tuple[InstructionSet, ...], expected: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One log line tells which, and why not a faster one."""
    on_a_cpu_with(monkeypatch, *has)
    kernels, event = chosen()
    assert (expected, expected, told) == (kernels.name, event["kernels"], event["not_faster_because"])


@built
@pytest.mark.parametrize("choice", ["avx2", "portable"])
def test_a_slower_set_is_taken_when_asked_for(choice: KernelChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests, and for answers that are the same on unlike hosts."""
    on_a_cpu_with(monkeypatch, "avx512_bf16", "avx2")
    kernels, event = chosen(choice)
    assert (choice, "asked for") == (kernels.name, event["not_faster_because"])


@built
def test_a_set_that_cannot_run_is_refused_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who forces one does not get another."""
    on_a_cpu_with(monkeypatch, "avx2")
    with pytest.raises(
        Unsupported, match="avx512_bf16 cannot run here: this CPU, or its system, lacks AVX-512"
    ) as refused:
        choose_kernels("avx512_bf16", 1)
    assert "KERNELS_UNSUPPORTED" == refused.value.reason


def test_without_a_library_the_portable_set_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No compiler at installation: one log line says so, and the engine computes."""

    def absent(path: str) -> ctypes.CDLL:
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", absent)
    load_library.cache_clear()
    kernels, event = chosen()
    load_library.cache_clear()
    assert "portable" == kernels.name
    assert "C compiler" in event["not_faster_because"]


@built
def test_a_library_of_another_version_is_not_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout moves on while what was built of it stays: no call into structures of another size.

    Fault injection: turns red when load_library does not check what it mirrors.
    """

    class LongerStep(ctypes.Structure):
        _fields_ = (*library.Step._fields_, ("more", ctypes.c_int64))

    monkeypatch.setattr(library, "Step", LongerStep)
    load_library.cache_clear()
    kernels, event = chosen()
    load_library.cache_clear()
    assert "portable" == kernels.name
    assert "another version" in event["not_faster_because"]

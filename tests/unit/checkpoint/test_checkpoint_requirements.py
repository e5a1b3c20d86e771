"""What artifacts require and runtimes offer: compared before any download, and told by name, required and actual."""

from __future__ import annotations

import dataclasses

import pytest

from services.common.checkpoint.architecture import Architecture
from services.common.checkpoint.conversion_options import ConversionOptions, narrowed
from services.common.checkpoint.dtype import DType
from services.common.checkpoint.requirements import INPUT_IDS, UNMET, Hosts, Offer, Requirements, Unmet
from services.common.errors import InvalidRequest, PreconditionFailed
from tests.tiny_checkpoints import TinyShape, requirements_of

ARCHITECTURE = Architecture.from_config(TinyShape().config(), DType.BF16)
CPU = Offer("0.1.0", "cpu", frozenset({"bf16", "fp32"}), frozenset({INPUT_IDS}))


def requiring(**changes: object) -> Requirements:
    return dataclasses.replace(requirements_of(ARCHITECTURE), **changes)  # type: ignore[arg-type]


CASES: dict[str, tuple[Requirements, Offer, tuple[Unmet, ...]]] = {
    "as converted": (requiring(), CPU, ()),
    "this class": (requiring(hosts=Hosts(device_classes=("cpu", "sm_90"))), CPU, ()),
    "another class": (
        requiring(hosts=Hosts(device_classes=("sm_90",))), CPU, (Unmet("device class", "sm_90", "cpu"),)
    ),
    "two other classes": (
        requiring(hosts=Hosts(device_classes=("sm_80", "sm_90"))),
        CPU,
        (Unmet("device class", "sm_80 or sm_90", "cpu"),),
    ),
    "a class like ours": (
        requiring(hosts=Hosts(device_classes=("sm_90",))),
        CPU._replace(device_class="sm_90a"),
        (Unmet("device class", "sm_90", "sm_90a"),),
    ),
    "who does not compute": (requiring(hosts=Hosts(device_classes=("sm_90",))), Offer("0.1.0"), ()),
    "too old": (
        requiring(hosts=Hosts(runtime=">=0.2")), CPU, (Unmet("runtime", ">=0.2", "0.1.0"),)
    ),
    "too new": (requiring(hosts=Hosts(runtime="<0.1.0,>=0.0.1")), CPU, (Unmet("runtime", "<0.1.0,>=0.0.1", "0.1.0"),)),
    "numbers, not texts": (requiring(hosts=Hosts(runtime=">=0.9")), CPU._replace(runtime="0.10.0"), ()),
    "before its release": (requiring(hosts=Hosts(runtime=">=0.2.dev0")), CPU._replace(runtime="0.2.0rc1"), ()),
    "precision": (
        requiring(precisions=("bf16", "int8")), CPU, (Unmet("precision", "int8", "bf16 or fp32"),)
    ),
    "input": (
        requiring(input_schema="pixels.v1"), CPU, (Unmet("input schema", "pixels.v1", INPUT_IDS),)
    ),
    "two of them": (
        requiring(hosts=Hosts(runtime="<0.1", device_classes=("sm_90",))),
        CPU,
        (Unmet("runtime", "<0.1", "0.1.0"), Unmet("device class", "sm_90", "cpu")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_met_is_told(case: str) -> None:
    """By name, with what is required and what is here."""
    requires, offer, expected = CASES[case]
    assert expected == requires.unmet(offer)


def test_r_g5_a_refusal_names_what_is_required_and_what_is_here() -> None:
    """For people and for programs. Turns red when: Requirements._unmet leaves the device class out."""
    with pytest.raises(PreconditionFailed, match="device class sm_90 is required, cpu is here") as raised:
        requiring(hosts=Hosts(device_classes=("sm_90",))).check(CPU)
    assert UNMET == raised.value.reason
    assert {"name": "device class", "required": "sm_90", "actual": "cpu"} == raised.value.metadata


def test_what_a_person_writes_gets_one_form() -> None:
    """Two ways of saying the same give one artifact id."""
    assert Hosts("<2,>=0.1", ("cpu", "sm_90")) == Hosts.parse(">= 0.1, <2,", ["sm_90", "cpu", "sm_90"])
    assert Hosts("", ()) == Hosts.parse("", ["any"])


@pytest.mark.parametrize(
    ("runtime", "classes"),
    [("new", ()), (">=", ()), ("1.0", ()), (">=0.1", ("SM 90",)), (">=0.1", ("",)), (">=0.1", ("a" * 33,))],
)
def test_what_is_no_requirement_is_refused(runtime: str, classes: tuple[str, ...]) -> None:
    """Before anything is converted, with an example."""
    with pytest.raises(InvalidRequest, match=r">=0\.1,<2"):
        ConversionOptions(runtime=runtime, device_classes=classes)


def test_requirements_are_those_of_the_source_unless_said_otherwise() -> None:
    """Converting an artifact again silently widens nothing."""
    source = Hosts("<2", ("sm_90",))
    assert source == ConversionOptions().hosts(source)
    assert Hosts("<3", ("sm_90",)) == ConversionOptions(runtime="<3").hosts(source)
    assert Hosts("<2", ()) == ConversionOptions(device_classes=narrowed(["any"])).hosts(source)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ConversionOptions(), []),
        (ConversionOptions(runtime="<2"), ["--require-runtime=<2"]),
        (ConversionOptions(device_classes=()), ["--require-device-class=any"]),
        (
            ConversionOptions(device_classes=("cpu", "sm_90")),
            ["--require-device-class=cpu", "--require-device-class=sm_90"],
        ),
    ],
)
def test_the_converter_is_told_what_was_asked_for(options: ConversionOptions, expected: list[str]) -> None:
    """The command line hands on what it was given."""
    assert expected == [each for each in options.arguments() if each.startswith("--require")]

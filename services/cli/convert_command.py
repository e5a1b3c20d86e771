"""`halogen convert`: its options, each of which is the converter's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli import convert as converter
from services.cli.console import byte_progress, out
from services.cli.options import JsonOption
from services.common.checkpoint.conversion_options import (
    DEFAULTS,
    ConversionOptions,
    QuantPolicy,
    Validation,
    narrowed,
)
from services.common.checkpoint.header import MAX_DIVISION
from services.common.checkpoint.layout import Storage
from services.common.checkpoint.requirements import ANY_DEVICE

QuantPolicyOption = Annotated[
    QuantPolicy,
    typer.Option("--quant-policy", help="What the weights are stored in; keep refuses a quantised source."),
]
DropOptimizerStateOption = Annotated[
    bool,
    typer.Option(
        "--drop-optimizer-state/--no-drop-optimizer-state",
        help="Leave training state out and name it, or refuse a source that has any.",
    ),
]
BlockSizeOption = Annotated[
    int,
    typer.Option(
        "--block-size",
        min=1,
        max=MAX_DIVISION,
        help="Rows of a weight that stay together when ranks share it.",
    ),
]
TensorParallelSizeOption = Annotated[
    int,
    typer.Option(
        "--tensor-parallel-size",
        min=1,
        max=MAX_DIVISION,
        help="Ranks that must be able to share the tensors.",
    ),
]
ValidateOption = Annotated[
    Validation,
    typer.Option("--validate", help="How much of the result to compare with the source, value by value."),
]
RequireRuntimeOption = Annotated[
    str | None,
    typer.Option(
        "--require-runtime",
        metavar="VERSIONS",
        help='Versions of halogen that may serve it, for example ">=0.1,<2".',
    ),
]
RequireDeviceClassOption = Annotated[
    list[str] | None,
    typer.Option(
        "--require-device-class",
        metavar="CLASS",
        help=f"A class of device that may serve it, for example cpu; {ANY_DEVICE}: all. May be given again.",
    ),
]


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A Hugging Face directory (safetensors, .bin), a GGUF file, or an artifact."),
    ],
    target: Annotated[Path, typer.Argument(help="The artifact directory to make.")],
    *,
    quant_policy: QuantPolicyOption = DEFAULTS.quant_policy,
    drop_optimizer_state: DropOptimizerStateOption = DEFAULTS.drop_optimizer_state,
    block_size: BlockSizeOption = DEFAULTS.storage.block_rows,
    tensor_parallel_size: TensorParallelSizeOption = DEFAULTS.storage.tensor_parallel_size,
    validate: ValidateOption = DEFAULTS.validation,
    require_runtime: RequireRuntimeOption = None,
    require_device_class: RequireDeviceClassOption = None,
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint to a v2 artifact."""
    options = ConversionOptions(
        quant_policy=quant_policy,
        drop_optimizer_state=drop_optimizer_state,
        storage=Storage(block_size, tensor_parallel_size),
        validation=validate,
        runtime=require_runtime,
        device_classes=narrowed(require_device_class),
    )
    with byte_progress() as progress:
        made = converter.to_artifact(source, target, progress, options)
    result = {"artifact_id": made, "directory": str(target)}
    out.print(json.dumps(result) if as_json else made)

"""``python -m services.loader.convert SRC OUT``: a checkpoint becomes an artifact directory.

SRC is a Hugging Face directory (safetensors or PyTorch zip files), a GGUF file, or an artifact.

Prints the artifact id on standard output. With ``--progress json`` standard output carries one JSON object a
line instead: ``{"done_bytes": …, "total_bytes": …}`` as it goes, ``{"note": …}`` for what a person should know,
then ``{"artifact_id": …}`` or ``{"error": {"kind": …, "message": …, "reason": …}}``. Exit status 1 after an
error, 128 and the signal's number after Ctrl-C, SIGTERM and SIGHUP.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from services.common.checkpoint.conversion_options import (
    DEFAULTS,
    ConversionOptions,
    QuantPolicy,
    Validation,
    narrowed,
)
from services.common.checkpoint.layout import Storage
from services.common.checkpoint.manifest import Manifest
from services.common.checkpoint.requirements import ANY_DEVICE
from services.loader.command import Reporter, paths_parser, run_command
from services.loader.conversion import convert


def main(argv: Sequence[str]) -> int:
    parser = paths_parser(__doc__, ("SRC", "OUT"))
    _add_options(parser)
    return run_command(parser, argv, _convert)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--block-size",
        type=int,
        default=DEFAULTS.storage.block_rows,
        help="rows of a weight that stay together when ranks share it",
    )
    parser.add_argument(
        "--quant-policy",
        type=QuantPolicy,
        choices=QuantPolicy,
        default=DEFAULTS.quant_policy,
        help="dtype of the stored weights; keep refuses a quantised source",
    )
    parser.add_argument(
        "--drop-optimizer-state",
        action=argparse.BooleanOptionalAction,
        default=DEFAULTS.drop_optimizer_state,
        help="leave training state out and name it, or refuse it",
    )
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=DEFAULTS.storage.tensor_parallel_size,
        help="ranks that must be able to share the tensors",
    )
    parser.add_argument(
        "--validate",
        dest="validation",
        type=Validation,
        choices=Validation,
        default=DEFAULTS.validation,
        help="how much of the result is compared with the source",
    )
    parser.add_argument(
        "--require-runtime",
        dest="runtime",
        metavar="VERSIONS",
        help='versions of halogen that may serve it, for example ">=0.1,<2"',
    )
    parser.add_argument(
        "--require-device-class",
        dest="device_classes",
        action="append",
        metavar="CLASS",
        help=f"a class of device that may serve it, for example cpu; {ANY_DEVICE}: all; may be given again",
    )


def _convert(arguments: argparse.Namespace, reporter: Reporter) -> Manifest:
    options = ConversionOptions(
        quant_policy=arguments.quant_policy,
        drop_optimizer_state=arguments.drop_optimizer_state,
        storage=Storage(arguments.block_size, arguments.tensor_parallel_size),
        validation=arguments.validation,
        runtime=arguments.runtime,
        device_classes=narrowed(arguments.device_classes),
    )
    return convert(
        arguments.source, arguments.destination, reporter.progress, options=options, note=reporter.note
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

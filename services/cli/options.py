"""The options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.common.checkpoint.conversion_options import QuantPolicy, Validation
from services.common.checkpoint.header import MAX_DIVISION
from services.common.checkpoint.load_format import LoadFormat

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of the local system; the nearest .halogen when not given."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar="HALOGEN_ADDRESS",
        help="The gateway's host:port; that of the local system when not given.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
ModelOption = Annotated[
    str, typer.Option("--model", help="May be left out when exactly one model is served.")
]
CohortOption = Annotated[
    str, typer.Option("--cohort", help="stable or canary; the server chooses when left out.")
]
MaxTokensOption = Annotated[int | None, typer.Option("--max-tokens", help="Most tokens to generate.")]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", help="0 is greedy.")]
TopKOption = Annotated[
    int | None, typer.Option("--top-k", help="Keep the k most likely tokens; 0 keeps all.")
]
TopPOption = Annotated[float | None, typer.Option("--top-p", help="Keep this much probability.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]
StopOption = Annotated[list[str] | None, typer.Option("--stop", help="Ends the answer; may be given again.")]
PublishedCohortOption = Annotated[str, typer.Option("--cohort", help="stable or canary.")]
WhoOption = Annotated[str, typer.Option("--who", help="For the audit record; the user's name by default.")]
WhyOption = Annotated[str, typer.Option("--why", help="For the audit record.")]
ExpectedRevisionOption = Annotated[
    int | None, typer.Option("--expected-revision", help="Only over this revision of the model.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", help="Seconds until the request is given up.")
]
ModelPathOption = Annotated[
    Path | None,
    typer.Option(
        "--model-path",
        "--serve",
        help="Hugging Face directory, GGUF file or artifact to serve; the demo model by default.",
    ),
]
LoadFormatOption = Annotated[
    LoadFormat,
    typer.Option(
        "--load-format",
        help="What --model-path must hold: auto takes any, and converts what is not v2.",
    ),
]
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

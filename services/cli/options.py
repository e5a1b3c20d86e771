"""The options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from services.common.checkpoint.load_format import LoadFormat
from services.common.ids import Cohort
from services.common.registry.publish_records import SwapMode

MAX_REVISION: Final = 2**64 - 1  # as messages carry them
_MAX_ENGINES: Final = 2**32 - 1  # the same


def _check_who(context: typer.Context, param: typer.CallbackParam, who: str) -> str:
    """Refuses one that is given and says nothing: it is not taken for none."""
    source = context.get_parameter_source(str(param.name))
    if not who.strip() and source and source.name != "DEFAULT":
        raise typer.BadParameter("say who does this, or leave --who out for the user's name")
    return who


def _checked_ratio(given: float | None) -> float | None:
    if given is not None and not 0 < given <= 1:
        raise typer.BadParameter(f"{given:g} is no part of the memory: give one above 0 and at most 1")
    return given


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
LogprobsOption = Annotated[
    bool | None,
    typer.Option("--logprobs", help="Show how likely the model found each token: natural logarithms."),
]
CacheSaltOption = Annotated[
    str,
    typer.Option(
        "--cache-salt",
        help="What is computed of the prompt is kept for, and taken from, requests of the same salt alone.",
    ),
]
PublishedCohortOption = Annotated[Cohort, typer.Option("--cohort", help="Which part of its traffic.")]
WhoOption = Annotated[
    str,
    typer.Option("--who", help="For the audit record; the user's name by default.", callback=_check_who),
]
WhyOption = Annotated[str, typer.Option("--why", help="For the audit record.")]
ExpectedRevisionOption = Annotated[
    int | None,
    typer.Option(
        "--expected-revision", min=0, max=MAX_REVISION, help="Only over this revision of the model."
    ),
]
PublishedModelArgument = Annotated[str, typer.Argument(help="The name that clients use.")]
StrategyOption = Annotated[
    SwapMode | None,
    typer.Option(
        "--strategy",
        help="atomic_swap loads beside what serves. drain_then_load lets that finish and go first, for machines without "
        "room for two: an OUTAGE of every engine of the cohort until it has the new one; callers are told to come back. "
        "As each engine is configured when left out.",
    ),
]
FallbackOption = Annotated[
    bool | None,
    typer.Option(
        "--fallback-on-failure/--no-fallback-on-failure",
        help="Whether engines that drained load again what is served when this fails; they do by default.",
    ),
]
MemoryGuardRatioOption = Annotated[
    float | None,
    typer.Option(
        "--memory-guard-ratio",
        callback=_checked_ratio,
        help="Part of the memory that engines may fill with it, above 0 and at most 1; as each is configured when left "
        "out.",
    ),
]
MinReadyOption = Annotated[
    int | None,
    typer.Option(
        "--min-ready",
        min=1,
        max=_MAX_ENGINES,
        help="Engines that must be ready before it is served; by default all that answer now, unless they fail.",
    ),
]
TimeoutMsOption = Annotated[
    int | None,
    typer.Option(
        "--timeout-ms",
        min=1,
        max=86_400_000,
        help="Milliseconds that an engine has to bring it up once its files are there, and that others have once the "
        "first one is ready; then it has failed.",
    ),
]
WaitServedOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until it is served; 0 does not wait.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", help="Seconds until the request is given up.")
]
ModelPathOption = Annotated[
    Path | None,
    typer.Option(
        "--model-path",
        "--serve",
        help="Hugging Face directory, GGUF file or artifact to serve, or with an http(s) --store the id of an "
        "artifact there; by default what was published under the demo model's name, else the demo model.",
    ),
]
LoadersStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        envvar="HALOGEN_STORE",
        help="Directory or http(s):// URL of artifacts that the loader reads; the home's own store by default.",
    ),
]
LoadFormatOption = Annotated[
    LoadFormat,
    typer.Option(
        "--load-format",
        help="What --model-path must hold: auto takes any, and converts what is not v2.",
    ),
]

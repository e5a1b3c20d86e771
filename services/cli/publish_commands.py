"""The commands that say what is served."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli import asked_gateway
from services.cli import publish as publishing
from services.cli import unpublish as unpublishing
from services.cli.asked_gateway import AskedGateway
from services.cli.console import out
from services.cli.control_client import Means, Order
from services.cli.gateway_option import gateway_option
from services.cli.operator_name import operator_name
from services.cli.options import (
    ExpectedRevisionOption,
    FallbackOption,
    JsonOption,
    MemoryGuardRatioOption,
    MinReadyOption,
    PublishedCohortOption,
    PublishedModelArgument,
    StrategyOption,
    TimeoutMsOption,
    WaitServedOption,
    WhoOption,
    WhyOption,
)
from services.cli.published import Published
from services.cli.traced import run_traced
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.ids import Cohort

PublishedArtifactArgument = Annotated[
    str,
    typer.Argument(
        help="An artifact directory, made by `halogen convert`, or the id of an artifact that is in the store; its "
        "beginning is enough once it was registered."
    ),
]
ReverifyOption = Annotated[
    bool, typer.Option("--reverify", help="Replace its files in the store; verify a REJECTED artifact again.")
]
OnceOption = Annotated[
    bool,
    typer.Option(
        "--once", help="Give no new revision to what the cohort is to serve already, unless it failed."
    ),
]
WaitUnloadedOption = Annotated[
    float, typer.Option("--wait", min=0, help="Seconds to wait until no engine holds it; 0 does not wait.")
]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", envvar="HALOGEN_STORE", help="Directory or file:// URL that the loaders read."),
]


@gateway_option
def publish(
    model: PublishedModelArgument,
    artifact: PublishedArtifactArgument,
    *,
    gateway: AskedGateway,
    cohort: PublishedCohortOption = Cohort.STABLE,
    who: WhoOption = "",
    why: WhyOption = "halogen publish",
    expected_revision: ExpectedRevisionOption = None,
    reverify: ReverifyOption = False,
    once: OnceOption = False,
    strategy: StrategyOption = None,
    min_ready: MinReadyOption = None,
    timeout_ms: TimeoutMsOption = None,
    fallback_on_failure: FallbackOption = None,
    memory_guard_ratio: MemoryGuardRatioOption = None,
    wait: WaitServedOption = 300,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an artifact: copy it to the store unless it is there, have it verified, name it for a cohort."""
    chosen = publishing.choose(artifact)
    means = Means(strategy, min_ready, timeout_ms, fallback_on_failure, memory_guard_ratio)
    order = Order(model, cohort, "", who or operator_name(), why, expected_revision, means)
    work = publishing.publish(
        gateway.endpoint,
        order,
        chosen,
        _store(store, gateway.home) if isinstance(chosen, Path) else "",
        reverify=reverify,
        wait_s=wait,
        once=once,
        patience_s=gateway.patience_s,
    )
    _tell(run_traced(work), is_served=wait > 0, as_json=as_json)


def _store(given: str | None, home: Path | None) -> str:
    """The store that the artifact is copied to; raises InvalidRequest where it is none that can be written."""
    store = asked_gateway.local_store(home) if given is None else given
    ArtifactStore.at(store)
    return store


def _tell(published: Published, *, is_served: bool, as_json: bool) -> None:
    if as_json:
        out.print(json.dumps(published._asdict()))
        return
    model, cohort, artifact_id, revision = published
    state = "is served" if is_served else "is published"
    out.print(f"revision {revision} of {model}@{cohort} {state}: artifact {artifact_id}")


@gateway_option
def unpublish(
    model: PublishedModelArgument,
    *,
    gateway: AskedGateway,
    why: WhyOption,
    cohort: PublishedCohortOption = Cohort.STABLE,
    who: WhoOption = "",
    expected_revision: ExpectedRevisionOption = None,
    wait: WaitUnloadedOption = 300,
    as_json: JsonOption = False,
) -> None:
    """Serve a model no more: new requests are refused, running ones finish, engines unload it."""
    order = Order(model, cohort, "", who or operator_name(), why, expected_revision)
    revision = run_traced(
        unpublishing.unpublish(gateway.endpoint, order, wait_s=wait, patience_s=gateway.patience_s)
    )
    if as_json:
        out.print(json.dumps({"model": model, "cohort": cohort, "revision": revision}))
    else:
        out.print(f"{model}@{cohort} is {'unloaded' if wait else 'unpublished'}: revision {revision}")

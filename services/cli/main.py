"""The `halogen` command line."""

from __future__ import annotations

import asyncio
import getpass
import json
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from services.cli import (
    artifact_commands,
    ask,
    asked_gateway,
    convert,
    demo,
    detached,
    publish,
    run_state,
    unpublish,
    up,
    verify,
)
from services.cli import status as status_command
from services.cli.console import CommandError, byte_progress, err, out
from services.cli.control_client import Order
from services.cli.home import Home
from services.cli.options import (
    AddressOption,
    BlockSizeOption,
    CohortOption,
    DropOptimizerStateOption,
    ExpectedRevisionOption,
    HomeOption,
    JsonOption,
    MaxTokensOption,
    ModelOption,
    PublishedCohortOption,
    QuantPolicyOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TensorParallelSizeOption,
    TimeoutOption,
    TopKOption,
    TopPOption,
    ValidateOption,
    WhoOption,
    WhyOption,
)
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions
from services.common.checkpoint.layout import Storage
from services.common.errors import HalogenError, Unavailable
from services.common.ids import fresh_id
from services.common.telemetry.tracing import exporting

R = TypeVar("R")

app = typer.Typer(
    help="Serves language models over gRPC and replaces their weights while they serve.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command("up")
def start(
    home: HomeOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it answers.")] = False,
    serve: Annotated[
        Path | None,
        typer.Option("--serve", help="Hugging Face or artifact directory; the demo model by default."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Its name; the directory's by default.")
    ] = None,
    stop_with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
) -> None:
    """Serve a model on this machine: etcd, loader, engine, scheduler and gateway."""
    place = Home.find(home)
    plan = up.prepare(place, model, serve)
    if up.greet_running(place, plan):
        return
    if detach:
        detached.serve(place, plan)
    else:
        up.serve_in_foreground(place, plan, stop_with_parent=stop_with_parent)


@app.command(hidden=True)
def supervise(home: Annotated[Path, typer.Option()], link: Annotated[int, typer.Option()]) -> None:
    """Run the five processes in the background, for `up --detach`."""
    detached.supervise(Home(home), link)


@app.command()
def down(home: HomeOption = None) -> None:
    """Stop what `up` started."""
    place = Home.find(home)
    stopped = run_state.stop(place, patience_s=up.STOP_S)
    err.print("stopped" if stopped else f"nothing runs from {place.root}")


@app.command()
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    *,
    address: AddressOption = None,
    model: ModelOption = "",
    cohort: CohortOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    timeout: TimeoutOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text."""
    asking = ask.Asking(
        model, cohort, max_tokens, temperature, top_k, top_p, seed, tuple(stop or ()), timeout
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    _run(ask.generate(asked_gateway.choose(address, home).address, text, asking, as_json=as_json))


@app.command()
def chat(
    message: Annotated[str | None, typer.Argument(help="One question; a conversation when left out.")] = None,
    *,
    system: Annotated[str, typer.Option("--system", help="What the model shall be told first.")] = "",
    address: AddressOption = None,
    model: ModelOption = "",
    cohort: CohortOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    timeout: TimeoutOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a question, or talk."""
    asking = ask.Asking(
        model, cohort, max_tokens, temperature, top_k, top_p, seed, tuple(stop or ()), timeout
    )
    begun = [ask.Message("system", system)] if system else []
    if message is not None:
        _run(
            ask.chat(
                asked_gateway.choose(address, home).address,
                [*begun, ask.user(message)],
                asking,
                as_json=as_json,
            )
        )
    else:
        _run(ask.converse(asked_gateway.choose(address, home).address, begun, asking))


@app.command("convert")
def convert_command(
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
    as_json: JsonOption = False,
) -> None:
    """Convert a checkpoint to a v2 artifact."""
    options = ConversionOptions(
        quant_policy=quant_policy,
        drop_optimizer_state=drop_optimizer_state,
        storage=Storage(block_size, tensor_parallel_size),
        validation=validate,
    )
    with byte_progress() as progress:
        made = convert.to_artifact(source, target, progress, options)
    result = {"artifact_id": made, "directory": str(target)}
    out.print(json.dumps(result) if as_json else made, markup=False)


app.command("verify")(verify.verify)
app.command("inspect")(artifact_commands.inspect)
app.command("diff")(artifact_commands.diff)


@app.command("demo")
def demo_command(
    folder: Annotated[Path, typer.Argument(help="Where both its forms go; made if missing.")],
) -> None:
    """Fetch the demo model and convert it, without serving it."""
    out.print(str(demo.ensure(folder).artifact), markup=False)


@app.command("publish")
def publish_command(
    model: Annotated[str, typer.Argument(help="The name that clients will use.")],
    artifact: Annotated[Path, typer.Argument(help="An artifact directory, made by `halogen convert`.")],
    *,
    cohort: PublishedCohortOption = "stable",
    who: WhoOption = "",
    why: WhyOption = "halogen publish",
    expected_revision: ExpectedRevisionOption = None,
    reverify: Annotated[
        bool,
        typer.Option("--reverify", help="Replace its files in the store; verify a REJECTED artifact again."),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Give no new revision to what the cohort is to serve already.")
    ] = False,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until it is served; 0 does not wait.")
    ] = 300,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", envvar="HALOGEN_STORE", help="Directory or file:// URL that the loaders read."
        ),
    ] = None,
    address: AddressOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve an artifact: copy it to the store, have it verified, name it for a cohort."""
    publish.check_artifact(artifact)
    order = Order(model, cohort, "", who or getpass.getuser(), why, expected_revision)
    gateway, folder = asked_gateway.choose(address, home), store or asked_gateway.local_store(home)
    published = _run(
        publish.publish(
            gateway.address,
            order,
            artifact,
            folder,
            reverify=reverify,
            wait_s=wait,
            once=once,
            patience_s=gateway.patience_s,
        )
    )
    if as_json:
        out.print(json.dumps(published._asdict()), markup=False)
    else:
        served = "is served" if wait else "is published"
        out.print(
            f"revision {published.revision} of {model}@{cohort} {served}: artifact {published.artifact_id}"
        )


@app.command("unpublish")
def unpublish_command(
    model: Annotated[str, typer.Argument(help="The name that clients use.")],
    *,
    why: WhyOption,
    cohort: PublishedCohortOption = "stable",
    who: WhoOption = "",
    expected_revision: ExpectedRevisionOption = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, help="Seconds to wait until no engine holds it; 0 does not wait."),
    ] = 300,
    address: AddressOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve a model no more: new requests are refused, running ones finish, engines unload it."""
    order = Order(model, cohort, "", who or getpass.getuser(), why, expected_revision)
    gateway = asked_gateway.choose(address, home)
    revision = _run(unpublish.unpublish(gateway.address, order, wait_s=wait, patience_s=gateway.patience_s))
    if as_json:
        out.print(json.dumps({"model": model, "cohort": cohort, "revision": revision}), markup=False)
    else:
        out.print(f"{model}@{cohort} is {'unloaded' if wait else 'unpublished'}: revision {revision}")


@app.command("status")
def status(address: AddressOption = None, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Show what is served where."""
    status_command.show(
        _run(status_command.read(asked_gateway.choose(address, home).address)), as_json=as_json
    )


def _run(work: Coroutine[Any, Any, R]) -> R:
    """Runs a command's work, its spans exported where the environment asks for it."""
    with exporting("cli", fresh_id("cli")):
        return asyncio.run(work)


def run() -> None:
    """The console script: one line for a failure, never a trace of our own insides."""
    try:
        app()
    except CommandError as failure:
        _fail(str(failure))
    except Unavailable as failure:
        if failure.reason != Unavailable.default_reason:  # a gateway said so
            _fail(failure.message)
        _fail(f"no gateway answers; start one with: halogen up, or give its --address ({failure.message})")
    except HalogenError as failure:
        _fail(failure.message)
    except KeyboardInterrupt:
        os._exit(130)


def _fail(line: str) -> NoReturn:
    err.print(f"halogen: {line}", markup=False)
    raise SystemExit(1)

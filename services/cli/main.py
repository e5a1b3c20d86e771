"""The `halogen` command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from services.cli import (
    abort_command,
    artifact_commands,
    ask,
    cache_commands,
    convert_command,
    demo,
    detached,
    history_command,
    publish_commands,
    push_command,
    qualify,
    rollback_command,
    run_state,
    sign_commands,
    token_command,
    up,
    verify,
    watch_command,
)
from services.cli import status as status_command
from services.cli.asked_gateway import AskedGateway
from services.cli.console import CommandError, err, out
from services.cli.convert_command import QuantPolicyOption
from services.cli.gateway_option import gateway_option
from services.cli.home import Home
from services.cli.options import (
    CacheSaltOption,
    CohortOption,
    HomeOption,
    JsonOption,
    LoadersStoreOption,
    LoadFormatOption,
    LogprobsOption,
    MaxTokensOption,
    ModelOption,
    ModelPathOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TimeoutOption,
    TopKOption,
    TopPOption,
)
from services.cli.traced import run_traced
from services.cli.unreached import nobody
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions
from services.common.checkpoint.load_format import LoadFormat
from services.common.errors import HalogenError, Unavailable
from services.common.rpc.status import UNREACHABLE

app = typer.Typer(
    help="Serves language models over gRPC and replaces their weights while they serve.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.command("up")
def start(
    *,
    home: HomeOption = None,
    detach: Annotated[bool, typer.Option("--detach", help="Return once it answers.")] = False,
    model_path: ModelPathOption = None,
    load_format: LoadFormatOption = LoadFormat.AUTO,
    store: LoadersStoreOption = None,
    quant_policy: QuantPolicyOption = DEFAULTS.quant_policy,
    model: Annotated[
        str | None, typer.Option("--model", help="Its name; the directory's by default.")
    ] = None,
    stop_with_parent: Annotated[bool, typer.Option("--stop-with-parent", hidden=True)] = False,
) -> None:
    """Serve a model on this machine: etcd, loader, engine, scheduler and gateway."""
    place = Home.find(home).reading(store)
    options = ConversionOptions(quant_policy=quant_policy)
    plan = up.prepare(place, model, model_path, load_format, options)
    if up.greet_running(place, plan):
        return
    if detach:
        detached.serve(place, plan)
    else:
        up.serve_in_foreground(place, plan, stop_with_parent=stop_with_parent)


@app.command(hidden=True)
def supervise(
    home: Annotated[Path, typer.Option()],
    store: Annotated[str, typer.Option()],
    link: Annotated[int, typer.Option()],
) -> None:
    """Run the five processes in the background, for `up --detach`."""
    detached.supervise(Home(home).reading(store), link)


@app.command()
def down(home: HomeOption = None) -> None:
    """Stop what `up` started."""
    place = Home.find(home)
    stopped = run_state.stop(place, patience_s=up.STOP_S)
    err.print("stopped" if stopped else f"nothing runs from {place.root}")


@app.command()
@gateway_option
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; - reads standard input.")],
    *,
    gateway: AskedGateway,
    model: ModelOption = "",
    cohort: CohortOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    cache_salt: CacheSaltOption = "",
    logprobs: LogprobsOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Continue a text."""
    asking = ask.Asking(
        model,
        cohort,
        max_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        tuple(stop or ()),
        cache_salt,
        timeout,
        logprobs,
    )
    text = sys.stdin.read() if prompt == "-" else prompt
    run_traced(ask.generate(gateway.endpoint, text, asking, as_json=as_json))


@app.command()
@gateway_option
def chat(
    message: Annotated[str | None, typer.Argument(help="One question; a conversation when left out.")] = None,
    *,
    gateway: AskedGateway,
    system: Annotated[str, typer.Option("--system", help="What the model shall be told first.")] = "",
    model: ModelOption = "",
    cohort: CohortOption = "",
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    stop: StopOption = None,
    cache_salt: CacheSaltOption = "",
    logprobs: LogprobsOption = None,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a question, or talk."""
    asking = ask.Asking(
        model,
        cohort,
        max_tokens,
        temperature,
        top_k,
        top_p,
        seed,
        tuple(stop or ()),
        cache_salt,
        timeout,
        logprobs,
    )
    begun = [ask.Message("system", system)] if system else []
    if message is not None:
        run_traced(
            ask.chat(
                gateway.endpoint,
                [*begun, ask.user(message)],
                asking,
                as_json=as_json,
            )
        )
    else:
        run_traced(ask.converse(gateway.endpoint, begun, asking))


app.command("convert")(convert_command.convert)
app.command("verify")(verify.verify)
app.command("inspect")(artifact_commands.inspect)
app.command("diff")(artifact_commands.diff)
app.command("keygen")(sign_commands.keygen)
app.command("sign")(sign_commands.sign)
app.command("qualify")(qualify.qualify)
app.command("token")(token_command.token)
app.add_typer(cache_commands.app, name="cache")


@app.command("demo")
def demo_command(
    folder: Annotated[Path, typer.Argument(help="Where both its forms go; made if missing.")],
) -> None:
    """Fetch the demo model and convert it, without serving it."""
    out.print(str(demo.ensure(folder).artifact))


app.command("publish")(publish_commands.publish)
app.command("unpublish")(publish_commands.unpublish)
app.command("rollback")(rollback_command.rollback)
app.command("abort")(abort_command.abort)
app.command("push")(push_command.push)
app.command("history")(history_command.history)
app.command("watch")(watch_command.watch)


@app.command("status")
@gateway_option
def status(*, gateway: AskedGateway, as_json: JsonOption = False) -> None:
    """Show what is served where."""
    status_command.show(run_traced(status_command.read(gateway.endpoint)), as_json=as_json)


def run() -> None:
    """The console script: one line for a failure, never a trace of our own insides."""
    try:
        app()
    except CommandError as failure:
        _fail(str(failure))
    except Unavailable as failure:
        if failure.reason != UNREACHABLE:  # somebody said so
            _fail(failure.message)
        _fail(nobody(failure))
    except HalogenError as failure:
        _fail(failure.message)
    except KeyboardInterrupt:
        os._exit(130)


def _fail(line: str) -> NoReturn:
    err.print(f"halogen: {line}")
    raise SystemExit(1)

"""`halogen up`: the demo model, or a model of one's own, served by five processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from services.cli import ask, closing, convert, demo, own_system, publish, run_state
from services.cli.console import CommandError, byte_progress, err, out
from services.cli.control_client import ControlClient, Order
from services.cli.home import Home
from services.cli.left_standing import OF_UP, left_standing
from services.cli.operator_name import operator_name
from services.cli.published import Published
from services.cli.run_state import Addresses
from services.cli.stack import PATIENCE_S, Stack, reserved_addresses
from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.checkpoint.conversion_options import DEFAULTS, ConversionOptions
from services.common.checkpoint.load_format import LoadFormat, check_format
from services.common.completion import Completion
from services.common.control_characters import escaped
from services.common.errors import NotFound
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId
from services.common.store_location import is_http
from services.common.with_parent import end_with_parent

T = TypeVar("T")

QUESTION: Final = "What is the capital of France?"
BEGINNING: Final = "Once upon a time"
START_S: Final = 120.0
_LAST_WORDS_S: Final = 2.0  # for a failure to be told after the work that died of it
PATIENT_TRIES: Final = 1_000  # until START_S is over: what stood before a restart may be loading again
STOP_S: Final = 6 * PATIENCE_S


class Plan(NamedTuple):
    """What to serve, and under which name.

    Attributes:
        artifact: Its directory, or its id where it lies in the store already; None for nothing as yet.
        is_demo: Whether nobody said what to serve.
    """

    model: str
    artifact: Path | ArtifactId | None
    is_demo: bool = False


def prepare(
    home: Home,
    model: str | None,
    source: Path | None,
    load_format: LoadFormat,
    options: ConversionOptions = DEFAULTS,
) -> Plan:
    """Makes ready what shall be served: the demo model, or `source`.

    Args:
        home: The local system.
        model: The name to serve `source` under; None for that of its directory.
        source: A Hugging Face directory, a GGUF file or an artifact; the id of one in a store that is read over HTTP.
        load_format: What `source` must be.
        options: How it is converted.

    Raises:
        CommandError: Something is missing; the line says what to do.
        HalogenError: `source` is not there, holds no model, or one of another format.
    """
    if importlib.util.find_spec("torch") is None:
        raise CommandError("the engine needs PyTorch: pip install 'halogen-serve[engine]'")
    if source is None and load_format is not LoadFormat.AUTO:
        raise CommandError("--load-format says what --model-path must be; give that too")
    home.make()
    if is_http(home.loaders_store):
        return _from_store(model, source)
    if source is None:
        return Plan(demo.MODEL, demo.ensure(home.models).artifact, is_demo=True)
    name = model or (source if source.is_dir() else source.with_suffix("")).name.lower()
    if check_format(source, load_format) is LoadFormat.V2:
        return Plan(name, source)
    artifact = home.models / name
    with byte_progress() as progress:
        convert.to_artifact(source, artifact, progress, options)
    return Plan(name, artifact)


def _from_store(model: str | None, source: Path | None) -> Plan:
    """Nothing can be put into a store that is read over HTTP: what is served from it is named by its id."""
    if source is None:
        return Plan("", None)
    if not ARTIFACT_ID_PATTERN.fullmatch(str(source)):
        raise CommandError(
            "with an http(s) --store, --model-path is the id of an artifact there: upload the artifact's directory "
            "under its id, manifest.json last"
        )
    if not model:
        raise CommandError("an id says nothing of a name: give --model, the name to serve the artifact under")
    return Plan(model, ArtifactId(str(source)))


async def introduce(addresses: Addresses, home: Home, plan: Plan) -> None:
    """Publishes the plan's model as stable unless it stands already, asks its question, prints the answer."""
    build = ""
    async with ControlClient(addresses.gateway) as control:
        await own_system.check(control, home, addresses, START_S)
        served = await serve(control, home, plan) if plan.artifact is not None else None
    if served and isinstance(plan.artifact, Path):
        artifact = ArtifactStore.at(home.loaders_store).root / served.artifact_id
        answer = await _ask_first(addresses.gateway, plan.model, artifact)
        build = answer.provenance.runtime_build if answer.provenance else ""
    closing.tell(addresses, build)
    if plan.artifact is None:
        out.print("serve an artifact of the store:  halogen publish MODEL ID")


async def serve(control: ControlClient, home: Home, plan: Plan) -> Published:
    """Publishes what the plan names as the model's stable; returns, once it is served, what is.

    The demo model leaves what an operator has published under its name, and says so.
    """
    wanted = await _left(control, plan) if plan.is_demo else None
    wanted = wanted or await _publish(control, home, plan)
    with err.status("waiting for the engine and the gateway"):
        return await publish.wait_until_serving(control, wanted, START_S)


async def _left(control: ControlClient, plan: Plan) -> Published | None:
    try:
        kept = left_standing(await control.publishes(plan.model, "stable", publish.STATUS_S))
    except NotFound:  # nothing was ever published
        return None
    if kept is None:
        return None
    if kept.why != OF_UP:
        who = f"{escaped(kept.who)} ({escaped(kept.why)})"
        line = f"{plan.model} stays as it was published by {who}, revision {kept.revision}"
        err.print(f"{line}; for the demo model: halogen publish {plan.model} {plan.artifact}")
    return Published(plan.model, kept.cohort, kept.artifact_id, kept.revision)


async def _publish(control: ControlClient, home: Home, plan: Plan) -> Published:
    why = OF_UP if plan.is_demo else f"{OF_UP} --model-path"
    order = Order(plan.model, "stable", "", who=operator_name(), why=why)
    with byte_progress() as progress:
        artifact_id = await (
            publish.register(control, order, plan.artifact, home.loaders_store, progress)
            if isinstance(plan.artifact, Path)
            else publish.register_by_id(control, order, plan.artifact or "", progress, reverify=False)
        )
    return await publish.name(control, order._replace(artifact_id=artifact_id), once=True)


async def _ask_first(gateway: str, model: str, artifact: Path) -> Completion:
    """One question to a model that can chat, the beginning of a story to one that cannot."""
    greedy = ask.Asking(model=model, max_tokens=64, temperature=0.0, timeout_s=START_S)
    if can_chat(artifact):
        out.print(f"\n{QUESTION}", style="bold")
        return await ask.chat(gateway, [ask.user(QUESTION)], greedy, figures=out, max_tries=PATIENT_TRIES)
    out.print(f"\n{BEGINNING}", style="bold", end="")
    return await ask.generate(gateway, BEGINNING, greedy, figures=out, max_tries=PATIENT_TRIES)


def can_chat(artifact: Path) -> bool:
    """Whether the artifact brings a chat template."""
    settings = artifact / "tokenizer_config.json"
    return (artifact / "chat_template.jinja").exists() or (
        settings.exists() and bool(json.loads(settings.read_text()).get("chat_template"))
    )


def serve_in_foreground(home: Home, plan: Plan, *, stop_with_parent: bool) -> None:
    """Runs the system until Ctrl-C, SIGTERM or a failure to start; leaves nothing behind."""
    if stop_with_parent:
        end_with_parent(os.getppid())
    asyncio.run(_foreground(home, plan))


async def _foreground(home: Home, plan: Plan) -> None:
    asked = stop_signal()
    async with running_stack(home) as stack:
        await unless(asked, stack.failed(), introduce(stack.addresses, home, plan))
        if not asked.is_set():
            out.print("Ctrl-C stops it.")
        await asked.wait()
        err.print("stopping")


@contextlib.asynccontextmanager
async def running_stack(home: Home) -> AsyncIterator[Stack]:
    """The processes, for the one launcher that holds the home."""
    with run_state.hold(home), reserved_addresses() as addresses:
        async with Stack(home, addresses, lambda line: err.print(line, style="yellow")) as stack:
            run_state.save(home, addresses)
            yield stack


def stop_signal() -> asyncio.Event:
    """Set when this process is asked to end."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    return asked


async def unless(
    asked: asyncio.Event, failure: Coroutine[Any, Any, None], work: Coroutine[Any, Any, None]
) -> None:
    """Does `work` to its end, unless a stop is asked for or `failure` raises first.

    Work that fails may do so because the system ends for that failure: then the failure is what is raised.
    """
    tasks = asked_for, failing, working = [
        asyncio.ensure_future(one) for one in (asked.wait(), failure, work)
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if working.done() and working.exception() and not asked_for.done():
            await asyncio.wait([failing], timeout=_LAST_WORDS_S)
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def greet_running(home: Home, plan: Plan) -> bool:
    """When a system already runs from this home: introduces the model to it and tells so.

    Raises:
        CommandError: Its loader reads another store.
    """
    state = run_state.running(home)
    if state is None:
        return False
    if state.store != home.loaders_store:
        raise CommandError(
            f"halogen already runs from {home.root}, with --store {state.store}; stop it with: halogen down"
        )
    err.print(f"halogen already runs from {home.root} (process {state.pid})")
    asyncio.run(introduce(state.addresses, home, plan))
    return True

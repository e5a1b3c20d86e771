"""Publishing from the command line: into the store, registered and verified, named as a target, waited for."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final, NamedTuple

from rich.progress import Progress

from halogen.v1 import control_pb2 as pb
from services.cli import delivery
from services.cli.aftermath import settled
from services.cli.console import CommandError, byte_progress, err
from services.cli.control_client import START_S, ControlClient, Order
from services.cli.id_prefix import ID_PREFIX_PATTERN, completed
from services.cli.published import Published
from services.common.checkpoint.artifact_store import ArtifactStore, read_manifest
from services.common.checkpoint.signatures import UNTRUSTED
from services.common.errors import NotFound
from services.common.ids import ARTIFACT_ID_PATTERN, ArtifactId
from services.common.rpc.endpoint import Peer
from services.common.telemetry.attributes import COHORT, MODEL
from services.common.telemetry.tracing import span

STATUS_S: Final = 10.0


def check_artifact(directory: Path) -> None:
    """Raises CommandError unless it is an artifact directory; the line says how to make one."""
    if (directory / "manifest.json").is_file():
        return
    if (directory / "config.json").is_file():
        advice = f"it holds a model of another format; convert it: halogen convert {directory} {directory}-artifact"
    else:
        advice = "make one with: halogen convert SOURCE OUT"
    raise CommandError(f"{directory} is no artifact directory; {advice}")


def choose(given: str) -> Path | str:
    """An artifact directory, or else what can be an artifact's id or its beginning; raises CommandError for neither."""
    path = Path(given)
    if ID_PREFIX_PATTERN.fullmatch(given) and not path.exists():
        return given
    check_artifact(path)
    return path


async def register(
    control: ControlClient,
    order: Order,
    artifact: Path,
    store: str,
    progress: Progress,
    *,
    reverify: bool = False,
) -> str:
    """Copies an artifact that could be served into the store and has it verified; returns its id.

    Args:
        control: The gateway's ControlService.
        order: For which model, who asks and why.
        artifact: The artifact directory.
        store: Directory or file:// URL that the loaders read.
        progress: Shows how far it is.
        reverify: Whether the files take the place of those in the store, and a REJECTED artifact gets another try.

    Raises:
        PreconditionFailed: No engine that is there could serve it; nothing is copied.
        CommandError: The artifact was found bad, or the store cannot be written.
    """
    manifest = await asyncio.to_thread(read_manifest, artifact)
    await control.check(order.model, manifest.encode(), STATUS_S)
    given = await asyncio.to_thread(delivery.deliver, artifact, ArtifactStore.at(store), replace=reverify)
    request = pb.RegisterArtifactRequest(
        model=order.model,
        manifest=given.manifest.encode(),
        reverify=reverify,
        verify_only=order.means.drains_first,
        signatures=given.signatures,
        who=order.who,
        why=order.why,
    )
    again = f"halogen publish {order.model} {artifact} --reverify"
    mended = f"If the files in {artifact} are good, this puts them into the store and has them verified"
    return await _verified(control, request, progress, _Remedy(mended, again))


async def register_by_id(
    control: ControlClient, order: Order, given: str, progress: Progress, *, reverify: bool
) -> str:
    """Has an artifact verified that the store has already; returns its id.

    Args:
        control: The gateway's ControlService.
        order: For which model, who asks and why.
        given: The artifact's id, or the beginning of one that was registered before.
        progress: Shows how far it is.
        reverify: Whether a REJECTED artifact gets another try.

    Raises:
        CommandError: It was found bad, or no artifact, or more than one, is meant.
    """
    artifact_id = await _meant(control, given)
    request = pb.RegisterArtifactRequest(
        model=order.model,
        artifact_id=artifact_id,
        reverify=reverify,
        verify_only=order.means.drains_first,
        who=order.who,
        why=order.why,
    )
    again = f"halogen publish {order.model} {artifact_id} --reverify"
    mended = "Once the store has good files, this has them verified"
    return await _verified(control, request, progress, _Remedy(mended, again))


async def _meant(control: ControlClient, given: str) -> ArtifactId:
    if ARTIFACT_ID_PATTERN.fullmatch(given):
        return ArtifactId(given)
    status = await control.status(STATUS_S)
    artifact_id = completed(given, (each.artifact_id for each in status.artifacts))
    if artifact_id is None:
        raise CommandError(
            f"no artifact that was registered begins with {given}; give its directory or its whole id"
        )
    return artifact_id


class _Remedy(NamedTuple):
    """The command that gives a REJECTED artifact another try, and when that helps where its files were bad."""

    mended: str
    again: str

    def against(self, reason: str) -> str:
        """The one that fits."""
        return f"{'Then' if reason.startswith(UNTRUSTED) else self.mended}: {self.again}"


async def _verified(
    control: ControlClient, request: pb.RegisterArtifactRequest, progress: Progress, remedy: _Remedy
) -> str:
    bar, artifact_id = progress.add_task("verify and load", total=None, visible=False), ""
    async with contextlib.aclosing(control.register(request)) as steps:
        async for step in steps:
            artifact_id = step.artifact_id
            if step.total_bytes:
                progress.update(bar, completed=step.done_bytes, total=step.total_bytes, visible=True)
            if step.state == pb.ARTIFACT_STATE_REJECTED:
                raise CommandError(
                    f"artifact {artifact_id[:12]} is REJECTED: {step.reason}. {remedy.against(step.reason)}"
                )
    progress.update(bar, completed=progress.tasks[bar].total or 0)
    return artifact_id


async def name(control: ControlClient, order: Order, *, once: bool) -> Published:
    """Names the order's artifact for its cohort; with `once`, keeps a publish of it that stands and has not failed."""
    if once and (standing := _kept(await control.status(STATUS_S), order)):
        return standing
    return Published(order.model, order.cohort, order.artifact_id, await control.publish(order))


def _kept(status: pb.Status, order: Order) -> Published | None:
    """The cohort's publish, if it is of the order's artifact; not one that failed, since only a newer is tried anew."""
    standing = Published.standing(status, order)
    if standing is None or standing.is_served(status):
        return standing
    if failure := standing.failure(status):
        err.print(f"{failure}; publishing it anew")
        return None
    return standing


async def wait_until_serving(control: ControlClient, wanted: Published, timeout_s: float) -> Published:
    """Returns once that revision, or a later one of its cohort, is served: it, or the publish of the same artifact that
    came before it was.

    Raises:
        CommandError: It has failed, another publish came before it, or the time is over; the line says who is waited
            for.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while newer := await _until_applied(control, wanted):
                err.print(
                    f"revision {wanted.revision} of {wanted.model}@{wanted.cohort} was superseded by revision "
                    f"{newer.revision}, which is of the same artifact"
                )
                wanted = newer
            await _until_active(control, wanted)
    except TimeoutError:
        status = await control.status(STATUS_S)
        raise CommandError(wanted.given_up(status) or wanted.lateness(status, timeout_s)) from None
    return wanted


async def _until_applied(control: ControlClient, wanted: Published) -> Published | None:
    """The publish of the same artifact that came before it was applied; None: it was."""
    outcomes = control.watch_publish(wanted.model, wanted.revision)
    with contextlib.suppress(NotFound):  # a publish that stands may be older than the last that are kept
        async with contextlib.aclosing(outcomes):
            async for outcome in outcomes:
                if newer := await _alike(control, wanted, outcome.superseded_by):
                    return newer
                is_failed = outcome.state == pb.PUBLISH_STATE_FAILED
                status = await settled(control, wanted.model) if is_failed else pb.Status()
                if failure := wanted.defeat(outcome, status):
                    raise CommandError(failure)
    return None


async def _alike(control: ControlClient, wanted: Published, revision: int) -> Published | None:
    """The publish under that revision (0: none), if it is of the same artifact."""
    entries = await control.publishes(wanted.model, wanted.cohort, STATUS_S) if revision else ()
    alike = any((each.revision, each.artifact_id) == (revision, wanted.artifact_id) for each in entries)
    return wanted._replace(revision=revision) if alike else None


async def _until_active(control: ControlClient, wanted: Published) -> None:
    """After a restart of the whole system what was applied before is yet to be loaded."""
    async with contextlib.aclosing(control.watch()) as statuses:
        async for status in statuses:
            if wanted.is_served(status):
                return
            if failure := wanted.failure(status):
                raise CommandError(failure)


async def _check_expected(control: ControlClient, order: Order) -> None:
    """Raises CommandError where the model is beyond the expected revision; a gateway that is behind lets it pass for now."""
    if order.expected_revision is None:
        return
    cohorts = (await control.status(STATUS_S)).cohorts
    now = max((each.desired_revision for each in cohorts if each.model == order.model), default=0)
    if now > order.expected_revision:
        raise CommandError(
            f"{order.model} is at revision {now}, not {order.expected_revision}; nothing was copied: look (halogen history "
            f"{order.model}), and ask again if that is still wanted"
        )


async def publish(
    gateway: Peer,
    order: Order,
    artifact: Path | str,
    store: str,
    *,
    reverify: bool,
    wait_s: float,
    once: bool = False,
    patience_s: float = START_S,
) -> Published:
    """The whole way of one artifact; waits until it is served unless `wait_s` is 0.

    Args:
        gateway: Whom to ask.
        order: Names no artifact yet.
        artifact: Its directory, which is copied to the store, or the id, or its beginning, of one that the store has.
        store: Needed for a directory only.
        reverify: As `register` says.
        wait_s: How long to wait until it is served.
        once: As `name` says.
        patience_s: How long to wait for a gateway.

    Raises:
        Unavailable: No gateway answers within `patience_s` seconds.
        CommandError: The artifact cannot be served; the line says why.
    """
    with span("publish", {MODEL: order.model, COHORT: order.cohort}):
        async with ControlClient(gateway) as control:
            await control.connect(patience_s)
            if not once:  # what stands may be just what is wanted
                await _check_expected(control, order)
            with byte_progress() as progress:
                artifact_id = await (
                    register(control, order, artifact, store, progress, reverify=reverify)
                    if isinstance(artifact, Path)
                    else register_by_id(control, order, artifact, progress, reverify=reverify)
                )
            published = await name(control, order._replace(artifact_id=artifact_id), once=once)
            if wait_s:
                with err.status("waiting for the engines and the gateways"):
                    published = await wait_until_serving(control, published, wait_s)
            return published

"""A publish, and what a status says of it: served, failed, or still waited for."""

from __future__ import annotations

from typing import NamedTuple, Self

from halogen.v1 import control_pb2 as pb
from halogen.v1 import types_pb2
from services.cli.aftermath import aftermath
from services.cli.control_client import Order
from services.cli.outcome_text import stage_name


class Published(NamedTuple):
    model: str
    cohort: str
    artifact_id: str
    revision: int

    @classmethod
    def standing(cls, status: pb.Status, order: Order) -> Self | None:
        """The cohort's publish, if it is of the order's artifact."""
        wanted = (order.model, order.cohort, order.artifact_id)
        for cohort in status.cohorts:
            if (cohort.model, cohort.cohort, cohort.desired_artifact_id) == wanted:
                return cls(*wanted, revision=cohort.desired_revision)
        return None

    def is_served(self, status: pb.Status) -> bool:
        """Whether gateways route to that revision or a later one, and an engine that is there now has it ready.

        What gateways route to outlives a restart of the whole system; the engines' readiness does not.
        """
        routed = any(
            (cohort.model, cohort.cohort) == (self.model, self.cohort)
            and cohort.serving_revision >= self.revision
            for cohort in status.cohorts
        )
        active = types_pb2.GENERATION_STATE_ACTIVE
        return routed and any(one.state == active for one in self._generations(status, later=True))

    def defeat(self, outcome: pb.PublishOutcome, status: pb.Status) -> str | None:
        """Why it is not served and will not be, with what serves by the status; None while it may be, or is."""
        if outcome.state == pb.PUBLISH_STATE_FAILED:
            return self._failed(outcome.failure, status)
        if outcome.state == pb.PUBLISH_STATE_SUPERSEDED:
            return (
                f"revision {self.revision} of {self.model}@{self.cohort} was SUPERSEDED by revision "
                f"{outcome.superseded_by} before it was served; see: halogen history {self.model}"
            )
        return None

    def _failed(self, failure: pb.Failure, status: pb.Status) -> str:
        return (
            f"revision {self.revision} of {self.model}@{self.cohort} has FAILED, and "
            f"{aftermath(status, self.model, self.cohort)}: {failure.message} "
            f"(stage {stage_name(failure.stage)}, {failure.reason})"
        )

    def given_up(self, status: pb.Status) -> str | None:
        """That it has failed, for good."""
        standing = self._standing(status)
        if standing is None or standing.desired_state != pb.PUBLISH_STATE_FAILED:
            return None
        return self._failed(standing.last_error, status)

    def failure(self, status: pb.Status) -> str | None:
        """That it has failed, or that every engine that tried has, or a gateway, which all must be ready.

        What a gateway failed at before this publish is no failure of it: the gateway tries again for each.
        """
        if given_up := self.given_up(status):
            return given_up
        for process in status.processes:
            for failure in process.text_failures:
                if self._is_of(failure):
                    return f"gateway {process.id} cannot serve {self.model}: {failure.error}"
        tried = self._generations(status, later=False)
        if tried and all(one.state == types_pb2.GENERATION_STATE_FAILED for one in tried):
            return f"no engine can serve {self.model}: {tried[0].error}"
        return None

    def lateness(self, status: pb.Status | None, timeout_s: float) -> str:
        """Who is waited for when `timeout_s` seconds were not enough; None is no status at all."""
        return (
            f"revision {self.revision} of {self.model} is published but not served after {timeout_s:.0f} s: "
            f"{self._awaited(status or pb.Status())}; look at: halogen status"
        )

    def _awaited(self, status: pb.Status) -> str:
        roles = {process.role for process in status.processes}
        if missing := sorted({"engine", "gateway", "loader", "scheduler"} - roles):
            return f"no {', no '.join(missing)} is registered"
        engines = self._generations(status, later=False)
        said = [f"an engine waits: {one.error}" for one in engines if one.error]
        said += [  # a gateway of an older version does not say for which publish
            f"gateway {process.id} could not serve it before: {failure.error}"
            for process in status.processes
            for failure in process.text_failures
            if failure.artifact_id == self.artifact_id
        ]
        standing = self._standing(status)
        if standing is not None and standing.waiting_for:
            said.append(f"waiting for {', '.join(standing.waiting_for)}")
        return said[0] if said else "an engine or a gateway is still loading"

    def _standing(self, status: pb.Status) -> pb.CohortStatus | None:
        """The cohort, while this is its latest publish."""
        wanted = (self.model, self.cohort, self.revision)
        named = (
            each for each in status.cohorts if (each.model, each.cohort, each.desired_revision) == wanted
        )
        return next(named, None)

    def _is_of(self, failure: pb.TextFailure) -> bool:
        named = (failure.model, failure.cohort, failure.artifact_id)
        return named == self[:3] and failure.revision >= self.revision

    def _generations(self, status: pb.Status, *, later: bool) -> list[pb.GenerationStatus]:
        """What engines hold of that revision, or of `later` ones too."""
        return [
            one
            for process in status.processes
            for one in process.generations
            if (one.model, one.cohort) == (self.model, self.cohort)
            and (one.revision == self.revision or (later and one.revision > self.revision))
        ]

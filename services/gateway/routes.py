"""Which model@cohort a request goes to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from services.common.errors import HalogenError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.records import Served, Serving, Target

_ANY: Final = ModelName("")


class Route(NamedTuple):
    """What answers: an artifact under the revision by which it came to serve."""

    model: ModelName
    cohort: Cohort
    revision: Revision
    artifact_id: ArtifactId


class Routes:
    """What is served, and what shall be.

    Of what the mirror says is served and what was heard elsewhere, the newer counts: the mirror may be behind.

    Args:
        serving: Mirror of serving/.
        targets: Mirror of targets/.
    """

    def __init__(self, serving: Mapping[str, Serving], targets: Mapping[str, Target]) -> None:
        self._serving = serving
        self._targets = targets
        self._heard: dict[str, Served] = {}  # key to what was heard elsewhere

    def hear(self, model: ModelName, cohort: Cohort, served: Served) -> bool:
        """Takes in what is served there by the word of another process; whether that is news."""
        key = keys.serving(model, cohort)
        known = self._now(key)
        if known is not None and known.revision >= served.revision:
            return False
        self._heard[key] = served
        return True

    def served(self) -> list[Route]:
        """Everything that is served, in order."""
        now = ((key, self._now(key)) for key in sorted({*self._serving, *self._heard}))
        return [
            Route(*keys.split_cohort_key(key), record.revision, record.artifact_id)
            for key, record in now
            if record and record.artifact_id is not None
        ]

    def aimed_at(self, model: ModelName, cohort: Cohort | None) -> list[Route]:
        """What targets/ names for that model (empty: any) and cohort (None: any), in order; not what has failed."""
        return self._aims(model, cohort, has_failed=False)

    def names(self) -> set[str]:
        """Every ``model@cohort`` that is served or shall be."""
        pairs = (keys.split_cohort_key(key) for key in (*self._serving, *self._targets))
        return {f"{model}@{cohort}" for model, cohort in pairs}

    def artifact_ids(self) -> set[ArtifactId]:
        """Everything that is served or shall be."""
        return {route.artifact_id for route in (*self.served(), *self.aimed_at(_ANY, None))}

    def to(self, artifact_id: ArtifactId) -> frozenset[Route]:
        """Everything served, or aimed at, that is this artifact."""
        named = (*self.served(), *self.aimed_at(_ANY, None))
        return frozenset(route for route in named if route.artifact_id == artifact_id)

    def trace_parent(self, artifact_id: ArtifactId) -> str:
        """The trace of the publish that a target with this artifact comes from; empty where none is known."""
        parents = (each.trace_parent for each in self._targets.values() if each.artifact_id == artifact_id)
        return next(parents, "")

    def choose(self, model: ModelName, cohort: Cohort | None) -> Route:
        """The route of a request.

        Args:
            model: Empty for the only one that is served.
            cohort: None for stable or, where that is not served, the only one there is.

        Raises:
            InvalidRequest: No model is named, and there are several.
            NotFound: The model or cohort was never published, or is unpublished.
            Unavailable: It is published but not served yet.
            PreconditionFailed: It is published and cannot be served.
        """
        routes = self._of_model(model or self._only_model())
        by_cohort = {route.cohort: route for route in routes}
        if cohort is not None and cohort not in by_cohort:
            raise self._not_served(routes[0].model, cohort)
        return by_cohort.get(cohort or Cohort.STABLE, routes[0])

    def _now(self, key: str) -> Serving | Served | None:
        """What is served under a key, None where nothing ever was."""
        said, heard = self._serving.get(key), self._heard.get(key)
        return heard if heard and (said is None or said.revision < heard.revision) else said

    def _aims(self, model: ModelName, cohort: Cohort | None, *, has_failed: bool) -> list[Route]:
        aims = [
            Route(*keys.split_cohort_key(key), target.revision, target.artifact_id)
            for key, target in sorted(self._targets.items())
            if target.artifact_id is not None and (target.failure is not None) is has_failed
        ]
        return [aim for aim in aims if model in ("", aim.model) and cohort in (None, aim.cohort)]

    def _of_model(self, model: ModelName) -> list[Route]:
        routes = [route for route in self.served() if route.model == model]
        if not routes:
            raise self._not_served(model, None)
        return routes

    def _only_model(self) -> ModelName:
        names = {route.model for route in self.served()}
        if not names and self.aimed_at(_ANY, None):
            raise _not_yet("no model is served yet")
        if not names and (failed := self._aims(_ANY, None, has_failed=True)):
            raise _failed(f"model {failed[0].model!r}", failed[0].model)
        if not names:
            raise NotFound("no model is published; publish one: halogen publish", reason="MODEL_NOT_FOUND")
        if len(names) > 1:
            raise InvalidRequest(
                f"several models are served: name one of {_listed(names)}", reason="MODEL_NOT_NAMED"
            )
        return names.pop()

    def _not_served(self, model: ModelName, cohort: Cohort | None) -> HalogenError:
        name = f"{model[:64]}@{cohort}" if cohort else f"model {model[:64]!r}"
        if self.aimed_at(model, cohort):
            return _not_yet(f"{name} is published and not served yet: no engine has it ready")
        if self._aims(model, cohort, has_failed=True):
            return _failed(name, model)
        served = _listed(f"{route.model}@{route.cohort}" for route in self.served())
        return NotFound(f"{name} is not served here; there is {served}", reason="MODEL_NOT_FOUND")


def _failed(name: str, model: ModelName) -> PreconditionFailed:
    return PreconditionFailed(
        f"{name} was published and could not be served; an operator sees why with: halogen history {model}",
        reason="PUBLISH_FAILED",
    )


def _not_yet(what: str) -> Unavailable:
    return Unavailable(f"{what}; try again soon", reason="MODEL_NOT_SERVED_YET", retry_after_s=1.0)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing yet"

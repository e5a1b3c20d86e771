"""Routing: from what a request names to what is served."""

from __future__ import annotations

import pytest

from services.common.errors import InvalidRequest, NotFound, PreconditionFailed, Unavailable
from services.common.ids import ArtifactId, Cohort, ModelName, Revision
from services.common.registry import keys
from services.common.registry.publish_records import Failure, Stage
from services.common.registry.records import Served, Serving, Target
from services.gateway.routes import Routes

Place = tuple[str, Cohort]
FOX, HEN = ("fox", Cohort.STABLE), ("hen", Cohort.STABLE)
FOX_CANARY = ("fox", Cohort.CANARY)
ANY = ModelName("")


def routes(served: list[Place], aimed_at: list[Place] | None = None) -> Routes:
    serving = {
        keys.serving(ModelName(model), cohort): Serving(
            revision=Revision(number), artifact_id=ArtifactId(f"{model}-{cohort}")
        )
        for number, (model, cohort) in enumerate(served, start=1)
    }
    targets = {
        keys.target(ModelName(model), cohort): Target(
            revision=Revision(9), artifact_id=ArtifactId("next"), who="w", why="y"
        )
        for model, cohort in (served if aimed_at is None else aimed_at)
    }
    return Routes(serving, targets)


@pytest.mark.parametrize(
    ("served", "model", "cohort", "expected"),
    [
        ([FOX], "", None, "fox-stable"),
        ([FOX, HEN], "hen", None, "hen-stable"),
        ([FOX, FOX_CANARY], "", None, "fox-stable"),
        ([FOX, FOX_CANARY], "fox", Cohort.CANARY, "fox-canary"),
        ([FOX_CANARY], "fox", None, "fox-canary"),
    ],
)
def test_a_request_goes_where_it_can_only_mean(
    served: list[Place], model: str, cohort: Cohort | None, expected: str
) -> None:
    """An empty model is the only one; an empty cohort is stable, or the only one."""
    assert expected == routes(served).choose(ModelName(model), cohort).artifact_id


def test_of_several_models_one_must_be_named() -> None:
    """The message lists them."""
    with pytest.raises(InvalidRequest, match="name one of fox, hen"):
        routes([FOX, HEN]).choose(ANY, None)


@pytest.mark.parametrize(("model", "cohort"), [("cow", None), ("cow", Cohort.STABLE), ("hen", Cohort.CANARY)])
def test_what_was_never_published_is_not_found(model: str, cohort: Cohort | None) -> None:
    """The message lists what there is."""
    with pytest.raises(NotFound, match="there is fox@stable, hen@stable"):
        routes([FOX, HEN]).choose(ModelName(model), cohort)


def test_where_nothing_is_published_nothing_is_found() -> None:
    """The message says how to begin."""
    with pytest.raises(NotFound, match="halogen publish"):
        routes([]).choose(ANY, None)


@pytest.mark.parametrize(
    ("model", "cohort"), [("", None), ("fox", None), ("fox", Cohort.STABLE), ("hen", Cohort.CANARY)]
)
def test_what_is_published_and_not_served_yet_comes_soon(model: str, cohort: Cohort | None) -> None:
    """It is unavailable, with a hint when to ask again."""
    served = [HEN] if model == "hen" else []
    with pytest.raises(Unavailable) as caught:
        routes(served, [FOX, HEN, ("hen", Cohort.CANARY)]).choose(ModelName(model), cohort)
    assert 1.0 == caught.value.retry_after_s


def test_what_is_unpublished_is_not_found() -> None:
    """It is neither served nor coming, and no longer counts where a request names no model."""
    gone = {"revision": Revision(3), "artifact_id": None}
    serving = {
        keys.serving(ModelName("fox"), Cohort.STABLE): Serving(**gone),
        keys.serving(ModelName("hen"), Cohort.STABLE): Serving(
            revision=Revision(1), artifact_id=ArtifactId("a")
        ),
    }
    targets = {keys.target(ModelName("fox"), Cohort.STABLE): Target(**gone, who="w", why="y")}
    made = Routes(serving, targets)
    with pytest.raises(NotFound, match="there is hen@stable"):
        made.choose(ModelName("fox"), None)
    assert "hen" == made.choose(ANY, None).model
    assert {"a"} == made.artifact_ids()
    with pytest.raises(NotFound, match="halogen publish"):
        Routes({}, targets).choose(ANY, None)


def test_everything_served_or_aimed_at_is_wanted() -> None:
    """Both what answers now and what shall answer next need their tokenizers."""
    assert {"fox-stable", "next"} == routes([FOX], [FOX]).artifact_ids()


@pytest.mark.parametrize(
    ("served", "model", "cohort"),
    [([], "hen", None), ([], "", None), ([FOX], "hen", None), ([FOX], "hen", Cohort.STABLE)],
)
def test_what_could_not_be_served_is_not_waited_for(
    served: list[Place], model: str, cohort: Cohort | None
) -> None:
    """No try later would help: that is said, and its text is wanted no more.

    Fault injection: turns red when `aimed_at` names targets that have failed.
    """
    made = routes(served, [HEN])
    failure = Failure(stage=Stage.GRAPH, reason="GRAPH_MISMATCH", message="another model")
    targets = {key: target.model_copy(update={"failure": failure}) for key, target in made._targets.items()}
    failed = Routes(made._serving, targets)
    with pytest.raises(PreconditionFailed, match=r"hen.* could not be served; .*: halogen history hen"):
        failed.choose(ModelName(model), cohort)
    assert {f"{model}-{cohort}" for model, cohort in served} == failed.artifact_ids()


def test_of_what_is_heard_the_newest_is_served() -> None:
    """By the mirror, or elsewhere while that is behind; nothing older leads back, and an unpublish is news, too.

    Fault injection: turns red when `hear` takes whatever comes, or `_now` prefers what was heard.
    """
    key, made = keys.serving(ModelName("fox"), Cohort.STABLE), routes([FOX])
    mirror = dict(made._serving)
    made._serving = mirror

    def hear(revision: int, artifact_id: str | None) -> bool:
        named = ArtifactId(artifact_id) if artifact_id else None
        served = Served(revision=Revision(revision), artifact_id=named)
        return made.hear(ModelName("fox"), Cohort.STABLE, served)

    assert [False, True, False] == [hear(1, "other"), hear(3, "third"), hear(2, "second")]
    for revision, artifact_id, expected in ((2, "second", (3, "third")), (4, "fourth", (4, "fourth"))):
        mirror[key] = Serving(revision=Revision(revision), artifact_id=ArtifactId(artifact_id))
        assert expected == made.choose(ModelName("fox"), None)[2:]
    assert hear(5, None)
    assert [] == made.served()

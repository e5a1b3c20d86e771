"""`halogen up` on a system in which an operator has published something under the model's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.cli import up
from services.cli.home import Home
from services.cli.up import Plan
from services.common.ids import ArtifactId
from tests.scenarios.cluster import Cluster
from tests.scenarios.publishing import operator
from tests.tiny_checkpoints import make_tiny_artifact

Start = Callable[..., Any]


async def test_up_serves_what_an_operator_has_published_unless_it_is_told_otherwise(
    start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo model leaves it, and says so in one line; what is asked for by its path is published.

    Fault injection: turns red when `up.serve` does not ask `_left`, or asks it whatever the plan is.
    """
    system: Cluster = await start("in_process")
    demo, others = (make_tiny_artifact(tmp_path, seed=seed)[0] for seed in (1, 2))
    home, plan = Home(system.store.parent), Plan("m", demo, is_demo=True)
    async with system.control() as control:
        await control.connect(60)
        first = await up.serve(control, home, plan)
        assert (1, first) == (first.revision, await up.serve(control, home, plan))
        published = await system.publish("m", others)
        capsys.readouterr()
        assert published == await up.serve(control, home, plan)
        told = f"m stays as it was published by test (test), revision 2; for the demo model: halogen publish m {demo}"
        assert [told] == capsys.readouterr().err.split("\n")[:1]
        asked = await up.serve(control, home, plan._replace(is_demo=False))
        assert (3, first.artifact_id) == (asked.revision, ArtifactId(asked.artifact_id))
        assert "halogen up --model-path" == (await operator(system, control).cohort()).why

"""What engines say, as a gateway takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.common.errors import InternalError

if TYPE_CHECKING:
    from tests.unit.gateway.wire.conftest import Gateway


async def test_an_engine_that_tells_no_logprobs_gives_no_answer_with_them(gateway: Gateway) -> None:
    """One of an older version knows nothing of them: the caller is told, and served when it asks without.

    Fault injection: turns red when `_messages` takes any number of logprobs.
    """
    gateway.peers.script = [(65, 66)]
    with pytest.raises(InternalError) as failure:
        await gateway.client.generate("a fox", logprobs=True).complete()
    assert "LOGPROBS_MISSING" == failure.value.reason
    assert [True] == [asked.sampling.logprobs for asked in gateway.peers.asked]
    answer = await gateway.client.generate("a fox").complete()
    assert ((65, 66), ()) == (answer.token_ids, answer.logprobs)

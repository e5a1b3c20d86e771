"""The portable operations keep what bfloat16's rounding of a product would lose."""

from __future__ import annotations

import torch

from services.engine.kernels.portable import PortableOperations


def test_the_best_logits_are_not_rounded() -> None:
    """Two tokens closer than bfloat16 can tell apart stay in their order.

    Turns red when: logits() returns the rounded product.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 64, generator=generator).bfloat16()
    weight = torch.randn(1000, 64, generator=generator).bfloat16()
    weight[7] = x[0] * 3
    weight[11] = weight[7]
    weight[11, 5] += 0.03125 * x[0, 5].sign()
    exact = x.float() @ weight.float().T
    rounded = PortableOperations().linear(x, weight)
    logits = PortableOperations().logits(x, weight)
    assert rounded[0, 7] == rounded[0, 11]
    assert 11 == int(exact[0].argmax()) == int(logits[0].argmax())
    best = exact.topk(16).indices
    torch.testing.assert_close(logits.gather(1, best), exact.gather(1, best), rtol=1e-6, atol=1e-5)


def test_float32_has_nothing_to_refine() -> None:
    """There the product is the logits."""
    x, weight = torch.randn(3, 64), torch.randn(100, 64)
    operations = PortableOperations()
    assert torch.equal(operations.linear(x, weight), operations.logits(x, weight))

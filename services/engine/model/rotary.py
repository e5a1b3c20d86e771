"""Rotary position embedding (Su et al. 2021), as a table of cosines and sines."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Rotary(NamedTuple):
    """Angles of every position: cos and sin, each [positions, head_dim / 2], float32.

    Element i of a head turns together with element i + head_dim / 2.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    @classmethod
    def of(cls, theta: float, head_dim: int, positions: int) -> Rotary:
        """The table for the base `theta`; float32 throughout, as the models were trained."""
        frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
        return cls(angles.cos(), angles.sin())

"""What a benchmark asks for: prompts of random tokens, in a mix of two sizes."""

from __future__ import annotations

import random
from typing import Final, NamedTuple


class Size(NamedTuple):
    """Tokens of a prompt and of its answer."""

    prompt: int
    tokens: int


class Ask(NamedTuple):
    """One request.

    Attributes:
        tokens: Of the answer, which never ends early.
        seed: Of its sampling; None is greedy.
    """

    prompt: tuple[int, ...]
    tokens: int
    seed: int | None = None


class Mix(NamedTuple):
    """Requests of a model."""

    vocabulary: int
    short: Size
    long: Size

    def ask(self, chance: random.Random, size: Size, seed: int | None = None) -> Ask:
        prompt = tuple(chance.randrange(self.vocabulary) for _ in range(size.prompt))
        return Ask(prompt, size.tokens, seed)

    def asks(self, chance: random.Random, count: int) -> list[Ask]:
        """So many: of every ten, seven short ones and three long ones; every other one is sampled, the rest are greedy."""
        sizes = [self.short if number % 10 < 7 else self.long for number in range(count)]
        return [self.ask(chance, size, number if number % 2 else None) for number, size in enumerate(sizes)]


SMOLLM2_MIX: Final = Mix(49_152, short=Size(60, 30), long=Size(500, 120))

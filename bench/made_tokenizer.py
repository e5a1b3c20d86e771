"""A tokenizer of any size, made on the spot: bytes, and words of letters that merge letter by letter."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END_OF_TEXT: Final = "<|endoftext|>"  # id 0
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"


class MadeTokenizer(NamedTuple):
    """A byte-level BPE (Sennrich et al. 2016).

    Attributes:
        tokens: By id.
        merges: Pairs of tokens that become one, the most important first.
    """

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, size: int) -> Self:
        """With so many tokens, at least one for each byte and one for the end of a text."""
        base = (END_OF_TEXT, *sorted(pre_tokenizers.ByteLevel.alphabet()))
        merges = tuple(itertools.islice(_merges(), size - len(base)))
        return cls((*base, *(first + second for first, second in merges)), merges)

    def write(self, folder: Path) -> None:
        """Writes what transformers, and our converter, read."""
        ids = {token: number for number, token in enumerate(self.tokens)}
        made = Tokenizer(models.BPE(vocab=ids, merges=list(self.merges)))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens([AddedToken(END_OF_TEXT, special=True)])
        made.save(str(folder / "tokenizer.json"))
        words = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
        }
        (folder / "tokenizer_config.json").write_text(json.dumps(words))


def _merges() -> Iterator[tuple[str, str]]:
    """Every word of two letters, then of three, and so on."""
    words = list(_LETTERS)
    while True:
        pairs = list(itertools.product(words, _LETTERS))
        yield from pairs
        words = [word + letter for word, letter in pairs]

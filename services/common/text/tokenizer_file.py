"""The file tokenizer.json."""

from __future__ import annotations

from tokenizers import Tokenizer

from services.common.errors import CorruptData


def read_tokenizer(content: bytes) -> Tokenizer:
    """The tokenizer that the file's bytes describe.

    Raises:
        CorruptData: They describe none.
    """
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as fault:  # the package raises bare Exception
        raise CorruptData(f"tokenizer.json cannot be read: {fault}") from fault

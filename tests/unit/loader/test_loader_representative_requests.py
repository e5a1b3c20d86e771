"""Representative requests: they go into the artifact with the model, if they are requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.errors import CorruptData
from services.common.text.representative_requests import MAX_REQUESTS
from services.loader.conversion import convert
from tests.tiny_checkpoints import write_tiny_checkpoint

NAME = "representative_requests.jsonl"
GOOD = (
    b'{"prompt": "Once", "expected_token_ids": [7, 0], "note": "kept"}\n\n'
    b'{"messages": [{"role": "user", "content": "hi"}]}\n'
)
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def test_they_are_a_file_of_the_artifact(tmp_path: Path) -> None:
    """Byte for byte, vouched for by the manifest, and so by the id."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / "chat_template.jinja").write_text(TEMPLATE)
    without = convert(source, tmp_path / "without")
    (source / NAME).write_bytes(GOOD)
    manifest = convert(source, tmp_path / "artifact")
    assert manifest.file(NAME) is not None
    assert without.id != manifest.id
    assert GOOD == (tmp_path / "artifact" / NAME).read_bytes()
    assert manifest.id == convert(tmp_path / "artifact", tmp_path / "again").id


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\n\n", "has 0 requests"),
        (b'{"prompt": "a"}\n' * (MAX_REQUESTS + 1), "has 1001 requests"),
        (b'{"prompt": "a"}\nnot json', "request 2 is no object"),
        (b'{"prompt": 3}', "request 1 is no object"),
        (b'["prompt"]', "request 1 is no object"),
        (b"[" * 100_000, "request 1 is no object"),
        (b"\xff\xfe", "request 1 is no object"),
        (b'{"messages": [{"role": "user"}]}', "request 1 has a message without a text role and content"),
        (b'{"prompt": "a", "expected_token_ids": 7}', "request 1 has expected_token_ids that are no list"),
        (
            b'{"prompt": "a", "expected_token_ids": [true]}',
            "request 1 has expected_token_ids that are no list",
        ),
        (b'{"prompt": "a", "expected_token_ids": [-1]}', "request 1 has expected_token_ids that are no list"),
        (
            b'{"prompt": "a"}\n{"prompt": "a", "expected_token_ids": [9999]}',
            "request 2 has token id 9999; ids of the",
        ),
        (b'{"prompt": ""}', "request 1 has no tokens"),
        (b'{"messages": [{"role": "user", "content": "hi"}]}', "the model has no chat template"),
    ],
)
def test_what_is_no_request_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    """By line, before anything is written."""
    source = write_tiny_checkpoint(tmp_path / "source")
    (source / NAME).write_bytes(content)
    with pytest.raises(CorruptData, match=expected):
        convert(source, tmp_path / "artifact")
    assert not (tmp_path / "artifact").exists()

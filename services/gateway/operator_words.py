"""What operators call things, and what they say for the audit, checked."""

from __future__ import annotations

from typing import Final

from services.common.auth.principal import caller
from services.common.control_characters import escaped, first_in
from services.common.errors import InvalidRequest
from services.common.ids import ARTIFACT_ID_PATTERN, MODEL_NAME_PATTERN, ArtifactId, Cohort, ModelName
from services.common.registry.publish_records import Strategy

MAX_WORDS: Final = 1_000  # characters of who and of why
MAX_TIMEOUT_MS: Final = 86_400_000


def checked_model_name(name: str) -> ModelName:
    """Raises InvalidRequest unless `name` can name a model."""
    if not MODEL_NAME_PATTERN.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot name a model: use lower-case letters, digits, '.', '_' and '-', at most 64",
            reason="MODEL_NAME_INVALID",
        )
    return ModelName(name)


def checked_artifact_id(given: str) -> ArtifactId:
    """Raises InvalidRequest unless `given` can be an artifact's id."""
    if not ARTIFACT_ID_PATTERN.fullmatch(given):
        raise InvalidRequest(
            f"{given[:80]!r} is none: an artifact id has 64 lower-case hexadecimal digits; see: halogen status",
            reason="ARTIFACT_ID_INVALID",
        )
    return ArtifactId(given)


def checked_cohort(name: str) -> Cohort:
    """The cohort of that name, stable when empty; raises InvalidRequest for any other."""
    try:
        return Cohort(name or Cohort.STABLE)
    except ValueError:
        raise InvalidRequest(f"there is no cohort {name[:80]!r}: use stable or canary") from None


def attested(who: str) -> str:
    """What was said, and the name of the credential that it was said with: the one is a word, the other was checked."""
    known = caller()
    if known is None or not who.strip() or known.name == who:
        return who
    return f"{who} ({known.name})"


def check_words(who: str, why: str) -> None:
    """Raises InvalidRequest unless both say something: an audit record without a name or a reason is none."""
    for field, words in (("who", who), ("why", why)):
        if not words.strip() or len(words) > MAX_WORDS:
            raise InvalidRequest(f"{field} must say something, in at most {MAX_WORDS} characters")
        check_plain(field, words)


def check_plain(field: str, words: str) -> None:
    """Raises InvalidRequest where the words hold a control character: they are shown in terminals and tables."""
    if found := first_in(words):
        raise InvalidRequest(
            f"{field} holds the control character {escaped(found)}: say it in one plain line"
        )


def checked_strategy(strategy: Strategy) -> Strategy:
    """Raises InvalidRequest for what is out of bounds; None is as the servers have it."""
    timeout_ms, ratio = strategy.timeout_ms, strategy.memory_guard_ratio
    if strategy.min_ready == 0:
        raise InvalidRequest("min_ready is 0: at least 1 engine must be ready before anything is served")
    if timeout_ms is not None and not 1 <= timeout_ms <= MAX_TIMEOUT_MS:
        raise InvalidRequest(f"timeout_ms is {timeout_ms}: give 1 to {MAX_TIMEOUT_MS}")
    if ratio is not None and not 0 < ratio <= 1:
        raise InvalidRequest(
            f"memory_guard_ratio is {ratio:g}: give a part of the memory, above 0 and at most 1"
        )
    return strategy

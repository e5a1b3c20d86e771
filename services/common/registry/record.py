"""What every value in the registry is."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict

from services.common.ids import Revision


class Record(BaseModel):
    """A value in the registry: frozen, canonical JSON on the wire. Unknown fields of newer writers are kept out."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    def encode(self) -> bytes:
        return self.model_dump_json().encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Raises pydantic.ValidationError, a ValueError, when `value` is not such a record."""
        return cls.model_validate_json(value)


class Revised(Record):
    """What a revision says. Under one key revisions only rise, so that a lower one is nothing new."""

    revision: Revision

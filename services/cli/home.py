"""Where a local system keeps its things: one folder, `.halogen`, beside the work it belongs to."""

from __future__ import annotations

import dataclasses
import os
import secrets
from pathlib import Path
from typing import Final

from services.common.checkpoint.artifact_store import ArtifactStore
from services.common.store_location import is_http

NAME: Final = ".halogen"


@dataclasses.dataclass(frozen=True, slots=True)
class Home:
    """The folders of one local system. Two homes are two systems that know nothing of each other.

    Attributes:
        elsewhere: The store that its loader reads, a directory or a URL, if that is not the home's own.
    """

    root: Path
    elsewhere: str = ""

    @classmethod
    def find(cls, asked: Path | None = None) -> Home:
        """`asked`, else $HALOGEN_HOME, else the nearest `.halogen` at or above the working directory, else there."""
        chosen = asked or (Path(given) if (given := os.environ.get("HALOGEN_HOME")) else None)
        if chosen is not None:
            return cls(chosen.absolute())
        here = Path.cwd()
        for folder in (here, *here.parents):
            if (folder / NAME).is_dir():
                return cls(folder / NAME)
        return cls(here / NAME)

    def reading(self, store: str | None) -> Home:
        """The same, its loader reading that store, if there is one.

        Raises:
            InvalidRequest: It is neither a directory nor a URL that loaders read.
        """
        if store is None:
            return self
        place = store if is_http(store) else str(ArtifactStore.at(store).root.absolute())
        return dataclasses.replace(self, elsewhere=place)

    @property
    def loaders_store(self) -> str:
        """Directory or URL of the store that the loader reads."""
        return self.elsewhere or str(self.store)

    @property
    def cache(self) -> Path | None:
        """Where the loader keeps weights that it has packed; None: in the user's, where files come over HTTP for all homes."""
        return None if is_http(self.loaders_store) else self.root / "cache"

    @property
    def state_file(self) -> Path:
        return self.root / "run" / "state.json"

    @property
    def lock_file(self) -> Path:
        return self.root / "run" / "lock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def etcd_data(self) -> Path:
        return self.root / "etcd"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def make(self) -> None:
        """Makes the folders; the home itself is for its owner only."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in (self.state_file.parent, self.logs, self.store, self.models):
            folder.mkdir(exist_ok=True)

    def ticket_key(self) -> Path:
        """The file of the key that signs tickets, made at first use, readable by its owner only."""
        return self._once("ticket.key", secrets.token_bytes(32))

    def system_id(self) -> str:
        """What tells this home's system from all others: eight hexadecimal digits, made at first use."""
        return self._once("system.id", secrets.token_hex(4).encode()).read_text()

    def _once(self, name: str, content: bytes) -> Path:
        """The file of that name; made of `content`, for its owner only, if it is not there."""
        path = self.root / name
        if not path.exists():
            fresh = path.with_suffix(f".{secrets.token_hex(4)}")
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            fresh.rename(path)
        return path

"""Configuration of a process: frozen, born valid, from a YAML file, HALOGEN_* variables and flags.

Flags win over variables, variables over the file, the file over defaults. A default appears once, at its field.
"""

from __future__ import annotations

import argparse
import contextvars
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from services.common.ids import ProcessId
from services.common.rpc.address import Address
from services.common.rpc.in_flight import SLOW_READER_S


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _parse_address(value: Any) -> Any:
    return Address.parse(value) if isinstance(value, str) else value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
HostPort = Annotated[Address, NoDecode, BeforeValidator(_parse_address)]

_config_file: contextvars.ContextVar[Path | None] = contextvars.ContextVar("config_file", default=None)


class ProcessConfig(BaseSettings):
    """What every process can be told. Each room's `config.py` adds its own fields."""

    model_config = SettingsConfigDict(
        env_prefix="HALOGEN_",
        frozen=True,
        extra="forbid",
        nested_model_default_partial_update=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
    )
    role: ClassVar[str]

    id: str = Field("", description="name of this process among its kind; the role and host name when empty")
    listen: HostPort = Field(
        Address("127.0.0.1", 0), description="host:port to bind; port 0 takes a free one"
    )
    advertise: str = Field("", description="host:port that others reach it by; what was bound when empty")
    http_listen: HostPort = Field(
        Address("127.0.0.1", 0),
        description="host:port for probes (/startupz, /readyz, /livez) and /metrics; port 0 takes a free one",
    )
    etcd: CommaSeparated = Field(("127.0.0.1:2379",), description="etcd endpoints, comma-separated")
    etcd_prefix: str = Field("halogen/", description="prefix of all keys: one per environment")
    etcd_user: str = Field("", description="etcd user; no authentication when empty")
    etcd_password_file: Path | None = Field(None, description="file with the etcd user's password")
    etcd_ca_file: Path | None = Field(None, description="CA certificate of etcd (PEM); turns TLS on")
    etcd_cert_file: Path | None = Field(None, description="client certificate for etcd (PEM)")
    etcd_key_file: Path | None = Field(None, description="client key for etcd (PEM)")
    lease_ttl_s: int = Field(
        10, ge=2, le=300, description="seconds after which a silent process is forgotten"
    )
    grace_s: float = Field(
        0.5,
        ge=0,
        description="seconds after SIGTERM in which new calls are still taken, while others learn of it",
    )
    drain_s: float = Field(30.0, ge=0, description="seconds that running calls then get to finish")
    slow_reader_s: float = Field(
        SLOW_READER_S, gt=0, description="seconds after which a stream is ended of which nothing is read"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level logged")

    @property
    def process_id(self) -> ProcessId:
        return ProcessId(self.id or f"{self.role}-{socket.gethostname()}")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # pydantic-settings passes it
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  # the same
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls, _config_file.get())

    @classmethod
    def load(cls, argv: Sequence[str]) -> Self:
        """Reads flags, environment and file.

        Raises:
            SystemExit: With status 2 and one line that says which setting is wrong; or 0 after ``--help``.
        """
        chooser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        chooser.add_argument(
            "--config", type=Path, help="YAML file of these settings, names with underscores"
        )
        chosen, rest = chooser.parse_known_args(argv)
        program = f"python -m services.{cls.role}"
        if chosen.config and not chosen.config.is_file():
            sys.exit(f"{program}: --config {chosen.config}: no such file")
        parser = argparse.ArgumentParser(prog=program, parents=[chooser], allow_abbrev=False)
        flags: CliSettingsSource[Any] = CliSettingsSource(cls, root_parser=parser)
        token = _config_file.set(chosen.config)
        try:
            return cls(_cli_settings_source=flags(args=rest))
        except ValidationError as failure:
            print(f"{program}: {_first_fault(failure)}", file=sys.stderr)  # noqa: T201  # the logs are not up yet
            raise SystemExit(2) from None
        finally:
            _config_file.reset(token)

    def as_event(self) -> dict[str, Any]:
        """The effective values, for the one event that prints them; secrets are files, so none is here."""
        return {name: str(value) for name, value in self}


def _first_fault(failure: ValidationError) -> str:
    fault = failure.errors()[0]
    name = "--" + "-".join(str(part) for part in fault["loc"]).replace("_", "-")
    return f"{name}: {fault['msg']} (got {fault['input']!r}); see --help"

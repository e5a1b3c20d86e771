"""Configuration of a process: frozen, born valid, from a YAML file, HALOGEN_* variables and flags.

Flags win over variables, variables over the file, the file over defaults. A default appears once, at its field.
"""

from __future__ import annotations

import argparse
import contextlib
import contextvars
import re
import socket
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from services.common.auth_config import AuthConfig
from services.common.config_file import nearest, read_settings
from services.common.ending import REFUSED
from services.common.errors import InvalidRequest
from services.common.ids import ProcessId
from services.common.rpc.address import Address
from services.common.rpc.in_flight import SLOW_READER_S


def _split(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _parse_address(value: Any) -> Any:
    return Address.parse(value) if isinstance(value, str) else value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
HostPort = Annotated[Address, NoDecode, BeforeValidator(_parse_address)]

_NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
_in_file: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("in_file", default=_NO_SETTINGS)


class ProcessConfig(AuthConfig):
    """What every process can be told. Each room's `config.py` adds its own fields."""

    model_config = SettingsConfigDict(
        env_prefix="HALOGEN_",
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        nested_model_default_partial_update=False,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        env_nested_delimiter="__",
    )
    role: ClassVar[str]

    id: str = Field("", description="name of this process among its kind; the role and host name when empty")
    listen: HostPort = Field(
        Address("127.0.0.1", 0), description="host:port to bind; port 0 takes a free one"
    )
    advertise: str = Field("", description="host:port that others reach it by; what was bound when empty")
    http_listen: HostPort = Field(
        Address("127.0.0.1", 0),
        description="host:port for probes (/startupz, /readyz, /livez, /healthz) and /metrics; port 0 takes a free one",
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
    log_filter: str = Field(
        "",
        description="regular expression; events below a warning are logged only where it is found in their component "
        "(checkpoint, state_machine, memory_pool) or name",
    )

    @field_validator("log_filter")
    @classmethod
    def _check_filter(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as fault:
            raise ValueError(f"is no regular expression: {fault}") from None
        return value

    @model_validator(mode="after")
    def _check_door(self) -> Self:
        self.check_door(self.listen)
        return self

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
        return init_settings, env_settings, InitSettingsSource(settings_cls, dict(_in_file.get()))

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
        given = flags(args=rest)
        try:
            with _reading(chosen.config, cls.names()):
                return cls(_cli_settings_source=given)
        except (ValidationError, InvalidRequest) as failure:
            line = failure.message if isinstance(failure, InvalidRequest) else _first_fault(failure)
            print(f"{program}: {line}", file=sys.stderr)  # noqa: T201  # the logs are not up yet
            raise SystemExit(REFUSED) from None

    def as_event(self) -> dict[str, Any]:
        """The effective values as JSON has them, for the one event that prints them; secrets are files, so none is here."""
        return {name: _plain(value) for name, value in self}

    @classmethod
    def names(cls) -> dict[str, tuple[str, ...]]:
        """Every setting's name, with the names of those in it where it is a section."""
        return {name: _names_in(field.annotation) for name, field in cls.model_fields.items()}

    @classmethod
    def misspelt(cls, variables: Iterable[str]) -> dict[str, str]:
        """Of the environment's `variables`, those that are nearly one of ours, each with the one that it may be.

        Others may be other processes': the environment is often shared.
        """
        prefix = str(cls.model_config["env_prefix"])
        inner = [f"{section}__{name}" for section, names in cls.names().items() for name in names]
        known = {*cls.model_fields, *inner}
        ours = [name for name in variables if name.startswith(prefix)]
        unknown = [name for name in ours if name.removeprefix(prefix).lower() not in known]
        slips = {name: nearest(name.removeprefix(prefix), known) for name in unknown}
        return {name: f"{prefix}{near.upper()}" for name, near in sorted(slips.items()) if near}


@contextlib.contextmanager
def _reading(file: Path | None, names: Mapping[str, Collection[str]]) -> Iterator[None]:
    """Settings that are made in the scope take what the file says."""
    token = _in_file.set(read_settings(file, names) if file else _NO_SETTINGS)
    try:
        yield
    finally:
        _in_file.reset(token)


def _names_in(kind: Any) -> tuple[str, ...]:
    """Of a section's settings; none where a setting is no section."""
    return tuple(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else ()


def _plain(value: Any) -> Any:
    match value:
        case Address() | Path():
            return str(value)
        case tuple():
            return [_plain(each) for each in value]
        case BaseModel():
            return {name: _plain(each) for name, each in value}
    return value


def _first_fault(failure: ValidationError) -> str:
    fault = failure.errors()[0]
    name = "--" + ".".join(str(part) for part in fault["loc"]).replace("_", "-")
    if fault["type"] == "missing":
        return f"{name} is needed; see --help"
    what = fault["msg"].removeprefix("Value error, ").removeprefix("Input ")
    if not fault["loc"] or what.startswith(f"{name} "):  # it names its setting by itself
        return f"{what}; see --help"
    is_plain = isinstance(fault["input"], str | int | float) and "@" not in str(fault["input"])
    got = f" (got {fault['input']!r})" if is_plain else ""  # not a URL's user and password
    return f"{name}: {what}{got}; see --help"

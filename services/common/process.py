"""What every process's `__main__` does the same way: configuration, logs, the registry, one `serve` to the end."""

from __future__ import annotations

import dataclasses
import datetime as dt
import gc
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import structlog

from services.common import lifecycle
from services.common.config import ProcessConfig
from services.common.ids import InstanceId, ProcessId, fresh_id
from services.common.registry.etcd import open_store
from services.common.registry.store import Store
from services.common.rpc.address import Address
from services.common.telemetry.logs import configure_logs
from services.common.telemetry.tracing import exporting

C = TypeVar("C", bound=ProcessConfig)
Started = Callable[[Address], None]
Serve = Callable[[C, Store, lifecycle.Stop, Started], Coroutine[Any, Any, None]]

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a process is for the others, fixed at its start; the fields of registry.records.ProcessRecord."""

    id: ProcessId
    instance_id: InstanceId
    address: str
    http_address: str
    host: str
    boot_id: str
    start_time: str  # RFC 3339, UTC

    @classmethod
    def of(cls, config: ProcessConfig, bound: Address, http: Address) -> Identity:
        """The identity of this start, reached at `config.advertise` or else at `bound`, and over HTTP at `http`.

        A wildcard cannot be dialled by others, so it is advertised as this host's name.
        """
        return cls(
            id=config.process_id,
            instance_id=InstanceId(fresh_id(config.role)),
            address=config.advertise or str(_reached(bound)),
            http_address=str(_reached(http)),
            host=socket.gethostname(),
            boot_id=boot_id(),
            start_time=dt.datetime.now(dt.UTC).isoformat(),
        )


def boot_id() -> str:
    """Which running kernel this is: the same in all containers of a host; the host's name where it has no id."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.is_file() else socket.gethostname()


def _reached(bound: Address) -> Address:
    return Address(socket.gethostname(), bound.port) if bound.is_wildcard else bound


def keep_for_good() -> None:
    """Spares the garbage collector all that a start has made, which stays.

    A full collection would look at each of these objects, hundreds of thousands where PyTorch is imported, while all
    else waits; and it is put off until a quarter as many new ones have come, so that what requests leave behind in
    cycles would lie there for as long.
    """
    gc.freeze()
    gc.collect()  # nearly nothing: from here the collector counts anew


def launch(config_type: type[C], serve: Serve[C]) -> None:
    """The whole life of a process started as ``python -m services.ROLE``.

    `serve` binds, calls its `started` with the address that was bound, works until its `stop` is asked for,
    finishes what runs and returns.
    """
    config = config_type.load(sys.argv[1:])
    configure_logs(config.role, config.log_level, config.log_filter)
    log.info("configuration", **config.as_event())
    if objection := config.token_objection:
        log.error("token_of_another_role", error=objection)
    if slips := config.misspelt(os.environ):
        log.warning("variables_misspelt", do_you_mean=slips)
    if expires := config.expiring(dt.datetime.now(dt.UTC)):
        log.warning("certificate_expires", path=str(config.tls_cert_file), expires=expires.isoformat())

    def started(bound: Address) -> None:
        log.info("listening", protocol="grpc", address=str(bound))
        keep_for_good()

    async def main(stop: lifecycle.Stop) -> None:
        async with open_store(config) as store:
            await serve(config, store, stop, started)

    with exporting(config.role, config.process_id):
        lifecycle.run(main)

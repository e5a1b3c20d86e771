"""Stores over a real etcd, and their end."""

from __future__ import annotations

from services.common.registry.etcd import EtcdStore
from services.common.registry.etcd_wire import Access, EtcdWire


class Stores:
    """Opens stores and closes them with the test."""

    def __init__(self) -> None:
        self._wires: list[EtcdWire] = []

    def open(self, *endpoints: str, timeout_s: float = 5.0, try_timeout_s: float = 1.5) -> EtcdStore:
        """A store whose current endpoint is the first of `endpoints`."""
        wire = EtcdWire(Access(endpoints=endpoints), timeout_s=timeout_s, try_timeout_s=try_timeout_s)
        wire._index = 0
        self._wires.append(wire)
        return EtcdStore(wire, "faults/")

    async def close(self) -> None:
        for wire in self._wires:
            await wire.close()

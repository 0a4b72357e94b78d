"""The hidden-state store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from profiles.address import checked_address, plain_host
from profiles.part import Part, Port, Positive


class Store(Part):
    """The Mooncake store that carries hidden states to the trainer's node."""

    protocol: Literal["tcp", "rdma"] = "tcp"
    """Transport of the hidden states."""
    device: str = ""
    """RDMA device names, comma separated; empty lets Mooncake choose."""
    gid_index: Annotated[int, Field(ge=0, le=255)] | None = None
    """Row of the RDMA ports' GID table (`MC_GID_INDEX`); empty lets Mooncake choose."""
    interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{0,32}$")] = ""
    """Network interface of the fabric: the capture client gives its address there as its own and listens on
    it (`MC_TCP_BIND_ADDRESS`); empty takes `host`."""
    host: str = "127.0.0.1"
    """Address that the master binds and that clients give as their own. Not loopback where roles are on
    several hosts, and never a wildcard."""
    master: str = ""
    """`HOST:PORT` of the master that a running server writes to (`serve.kind: attach` only); IPv6 as
    `[2001:db8::5]:50051`."""
    rpc_port: Port = 0
    """Port of the master; 0 takes a free one."""
    segment_bytes: Annotated[int, Field(ge=16 * 2**20)] = 2**30
    """Memory that the serving side lends to the store, bytes."""
    local_buffer_bytes: Annotated[int, Field(ge=16 * 2**20)] = 256 * 2**20
    """Transfer buffer of each client, bytes; the capture client reads as many samples at once as it holds."""
    writer_threads: Positive = 2
    """Threads that write samples inside the serving process."""

    @field_validator("host")
    @classmethod
    def _host_is_one_address(cls, value: str) -> str:
        return plain_host(value, "store.host")

    @field_validator("master")
    @classmethod
    def _master_is_an_address(cls, value: str) -> str:
        return checked_address(value, "store.master") if value else value

    @model_validator(mode="after")
    def _transport_agrees(self) -> Store:
        if self.protocol == "tcp" and self.gid_index is not None:
            raise ValueError(
                "store.gid_index belongs to store.protocol rdma; with tcp it would change nothing"
            )
        return self

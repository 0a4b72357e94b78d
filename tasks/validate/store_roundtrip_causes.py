"""Named causes of a round trip that failed, from return codes and the lines that Mooncake logs. Pure.

One code has several causes: -200 is a full segment as well as a full local buffer, and a get answers nothing
for a full buffer, a closed port and a missing object alike. Only the logs of both ends and of the master
tell them apart.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.stream.codes import cause_of
from tasks.stream.roundtrip_settings import Failure

REMEDIES = {
    "unknown_host": "set store.host to the node's data address, or add the name to /etc/hosts on every node",
    "loopback_host": "set store.host (MOONCAKE_LOCAL_HOSTNAME) to the data address: installers often map the "
    "host name to 127.0.1.1, and peers then dial themselves",
    "wrong_host": "set store.host to an address of the node's data interface (`ip -brief address`)",
    "closed_port": "open the port between the nodes: the master's, and those of Mooncake's clients "
    "(12000-17000 by default); is the program there alive?",
    "setup_failed": "see the log of this end: memory that cannot be registered (`ulimit -l unlimited`), an "
    "RDMA device that is not there, or a master of another version",
    "not_installed": "install mooncake-transfer-engine and the libraries that it loads",
    "local_buffer": "raise store.local_buffer_bytes, or lower store.writer_threads",
    "segment_full": "raise store.segment_bytes, or lower stream.in_flight_bytes",
    "transfer_failed": "see the logs of both ends; with rdma: port state, GID (MC_GID_INDEX), locked memory",
    "master_gone": "see the log of the master: it ended, or the network to it broke",
    "object_missing": "the store lost an object between put and get: see the master's log for evictions",
    "checksum": "do not use this path: bytes changed on the way. Check NIC, memory (ECC) and cables",
    "store_refused": "see the logs of both ends and of the master",
    "not_observed": "run the validate stage (or `retrain-dspark doctor`) with the round trip on",
    "process_died": "see the log of this end",
    "timeout": "see the logs of both ends: the link is far too slow, or packets to a port are dropped",
    "peer_gone": "see the log of the other end",
    "not_crossed": "both ends ran on one host, or Mooncake chose another device: check where the launcher "
    "puts the roles, store.host, store.device and MC_FORCE_TCP",
    "too_slow": "check link speed and protocol (rdma instead of tcp), raise store.writer_threads, or plan "
    "fewer tokens per second",
}
"""Named cause -> what to do."""

_WORDS = {
    "local_buffer": "the local buffer is too small",
    "segment_full": "the segments are full",
    "closed_port": "a port is closed",
    "loopback_host": "an end gave a loopback address as its own",
    "transfer_failed": "the transfer failed",
    "master_gone": "the master cannot be reached",
    "object_missing": "an object is missing",
    "checksum": "bytes changed on the way",
    "store_refused": "the store refused",
}
_CONNECT = re.compile(r"connect\(\)\s*(?P<host>\S+):(?P<port>\d+): (?P<why>.+?) \[\d+\]")
_MASTER_FULL = re.compile(r"PutStart failed .*insufficient space")
_PUT_BUFFER = "Failed to allocate buffer for put"
_GET_BUFFER = "Failed to allocate buffer for"


@dataclass(frozen=True)
class Logs:
    """Last lines of the three processes.

    Args:
        spans_hosts: The ends are on different hosts, so a loopback address is a mistake.
    """

    producer: Sequence[str] = ()
    consumer: Sequence[str] = ()
    master: Sequence[str] = ()
    spans_hosts: bool = False


def cause_id_of(failure: Failure, logs: Logs) -> str:
    """Name the cause of one failed put or get."""
    if failure.code == "checksum":
        return "checksum"
    own = logs.producer if failure.operation == "put" else logs.consumer
    if failure.code == "-200":
        return _full(logs.master)
    if failure.code == "-600" and any(_PUT_BUFFER in line for line in own):
        return "local_buffer"
    if failure.code == "none":
        return _nothing(failure.key, own, logs.spans_hosts)
    if failure.code in ("-800", "-500"):
        return _unreachable(own, logs.spans_hosts) or "transfer_failed"
    return {"-900": "master_gone", "-704": "object_missing"}.get(failure.code, "store_refused")


def name_causes(failures: Sequence[Failure], logs: Logs) -> Counter[str]:
    """Named cause -> how many puts and gets failed of it."""
    return Counter(cause_id_of(failure, logs) for failure in failures)


def sentence(cause_id: str, failures: Sequence[Failure], logs: Logs) -> str:
    """One cause in words, with operation, placement, return codes and the peer that could not be dialled."""
    mine = [failure for failure in failures if cause_id_of(failure, logs) == cause_id]
    groups = Counter((one.operation, one.placement, one.code) for one in mine)
    parts = [_answered(*group, count) for group, count in groups.items()]
    words = _WORDS.get(cause_id, cause_id)
    if cause_id == "local_buffer":
        ends = sorted({"producer" if one.operation == "put" else "consumer" for one in mine})
        words = f"the local buffer of the {' and of the '.join(ends)} is too small"
    if cause_id in ("closed_port", "loopback_host"):
        dialled = [line for line in (*logs.producer, *logs.consumer) if _CONNECT.search(line)]
        parts += [_dialled(line) for line in dialled[:1]]
    return f"{words}: {'; '.join(parts)}"


def _answered(operation: str, placement: str, code: str, count: int) -> str:
    way = "into" if operation == "put" else "from"
    return (
        f"{count} {operation}{'s' * (count > 1)} {way} the {placement}'s segment answered {said_code(code)}"
    )


def said_code(code: str) -> str:
    """A return code in words."""
    if code == "none":
        return "nothing"
    if code == "checksum":
        return "other bytes"
    return f"{code} ({cause_of(int(code))})"


def connection_cause(logs: Logs) -> tuple[str, str] | None:
    """Named cause and words of a connection that an end could not make, if its log tells of one."""
    for line in (*logs.producer, *logs.consumer):
        if _CONNECT.search(line):
            cause_id = _unreachable([line], logs.spans_hosts)
            return cause_id, f"{_WORDS[cause_id]}: {_dialled(line)}"
    return None


def _full(master: Sequence[str]) -> str:
    """The client logs the same line for both; the master logs only what its segments cannot hold.

    Without the copy in memory, a put into the own segment is staged like any other.
    """
    return "segment_full" if any(_MASTER_FULL.search(line) for line in master) else "local_buffer"


def _nothing(key: str, log: Sequence[str], spans_hosts: bool) -> str:
    about = [line for line in log if key in _words(line)]
    if any(_GET_BUFFER in line for line in about):
        return "local_buffer"
    if any("TRANSFER_FAIL" in line or "transfer_read_failed" in line for line in about):
        return _unreachable(log, spans_hosts) or "transfer_failed"
    return "object_missing"


def _words(line: str) -> set[str]:
    return set(re.split(r"[\s=,;]+", line))


def _unreachable(log: Sequence[str], spans_hosts: bool) -> str:
    for line in log:
        if found := _CONNECT.search(line):
            return "loopback_host" if spans_hosts and _is_loopback(found["host"]) else "closed_port"
    return ""


def _dialled(line: str) -> str:
    found = _CONNECT.search(line)
    assert found is not None
    return f"{found['host']}:{found['port']} could not be dialled: {found['why']}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

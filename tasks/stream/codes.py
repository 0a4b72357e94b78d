"""Return codes of the Mooncake store, in words."""

from __future__ import annotations

STORE_FULL = -200
OBJECT_MISSING = -704
OBJECT_EXISTS = -705
OBJECT_LEASED = -706
LEASE_EXPIRED = -707
TRANSFER_FAILED = -800
MASTER_AWAY = -900

_CAUSES = {
    -1: "internal error of the store",
    -10: "a buffer was too small",
    -100: "the segment does not exist any more: its owner has gone",
    -101: "the segment is mounted already",
    STORE_FULL: "the store is full",
    -400: "the key is not valid",
    -500: "the write failed",
    -600: "an argument was invalid",
    -700: "a write in this state is not allowed",
    -701: "the object cannot be read in this state",
    -702: "the replica is not valid",
    -703: "the object's replica is not ready",
    OBJECT_MISSING: "the object is not in the store",
    OBJECT_EXISTS: "the object exists already",
    OBJECT_LEASED: "the object is leased to a reader",
    LEASE_EXPIRED: "the lease ran out before the read ended",
    TRANSFER_FAILED: "the transfer failed: no segment is there that takes or gives the object",
    MASTER_AWAY: "the master cannot be reached",
}


def cause_of(code: int) -> str:
    """What a negative return code means."""
    return _CAUSES.get(code, "see ErrorCode in Mooncake's types.h")

"""The seal of a stored object: its last 64 bytes, which tell whether the payload before them is intact.

Layout, little endian: 8 bytes magic, 8 bytes payload length, 8 bytes XXH3-64 of the payload, 8 bytes
count of waits for space before the put, 32 zero bytes. XXH3 because it runs at memory speed: the writer
threads of a rack seal about a gigabyte a second. 64 bits find damage; they do not stop forgery.
"""

from __future__ import annotations

import struct

import xxhash

SEAL_BYTES = 64
ALGORITHM = "xxh3-64"
_MAGIC = b"RDSEAL02"
_FORMAT = struct.Struct("<8sQQQ32x")


class SealBroken(ValueError):
    """The object was cut, overwritten or mixed up."""


def seal(payload: memoryview | bytes, waits: int = 0) -> bytes:
    """The 64 bytes that go behind `payload`."""
    return seal_of(len(payload), xxhash.xxh3_64_intdigest(payload), waits)


def seal_of(length: int, digest: int, waits: int = 0) -> bytes:
    """The 64 bytes that go behind a payload of `length` bytes whose XXH3-64 is `digest`."""
    return _FORMAT.pack(_MAGIC, length, digest, waits)


def check_seal(stored: memoryview) -> int:
    """Check an object read from the store (payload and seal); return how often its put had to wait.

    Raises:
        SealBroken: With the difference found.
    """
    if len(stored) < SEAL_BYTES:
        raise SealBroken(f"the object has {len(stored)} bytes, less than its seal")
    payload = stored[:-SEAL_BYTES]
    magic, length, digest, waits = _FORMAT.unpack(stored[-SEAL_BYTES:])
    if magic != _MAGIC:
        raise SealBroken("the object has no seal")
    if length != len(payload):
        raise SealBroken(f"the object holds {len(payload)} bytes, its seal says {length}")
    if digest != xxhash.xxh3_64_intdigest(payload):
        raise SealBroken(f"{ALGORITHM} of {length} bytes differs from the seal")
    return int(waits)


def holds_payload(stored: memoryview, digest: int) -> bool:
    """Whether an object is intact and its payload has this XXH3-64."""
    try:
        check_seal(stored)
    except SealBroken:
        return False
    return bool(_FORMAT.unpack(stored[-SEAL_BYTES:])[2] == digest)

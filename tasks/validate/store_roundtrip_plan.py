"""What the round trip measures: its ends, and the sizes and concurrency that the run will have. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.schema import Profile
from profiles.streaming import in_flight_bytes
from tasks.processes.places import Place
from tasks.stream.roundtrip_settings import Placement, Series
from tasks.validate.store_roundtrip_rules import BUFFER_MARGIN, USABLE_SEGMENT

SMALL_BYTES = 4096
BULK_BYTES = 64 * 2**20
WARMUPS = 3
REPETITIONS = 10
SMALL_REPETITIONS = 40
"""More of the small ones: they cost nothing, and a 95th percentile of ten is their maximum."""
SERIES_LIMIT_S = 0.4
"""No further round of a series begins later; with two placements of up to six series, about 5 s in all."""
SLOWEST_S = 6.0
LEAST_ROUNDS: dict[Placement, int] = {"producer": 3, "consumer": 2}
"""Of the sample: one for warm-up and two to measure where the rate is judged. Of other sizes one will do."""
_WORD_BYTES = 4


@dataclass(frozen=True)
class StoreEnds:
    """Where the two ends of the store are.

    Args:
        producer_host: Data address of the serving head; the store's master is there too.
        consumer_host: Data address of the training node.
        spans_hosts: They are different hosts, so the payload must be seen on their devices.
    """

    producer_host: str
    consumer_host: str
    spans_hosts: bool


def ends_of(serve: Place, train: Place) -> StoreEnds:
    """The first serving node and the first training node, which may be one machine."""
    hosts = serve.profile.store.host, train.profile.store.host
    return StoreEnds(*hosts, spans_hosts=serve.nodes[0] != train.nodes[0])


def planned_series(profile: Profile, sample_bytes: int) -> tuple[Series, ...]:
    """4 KiB, 64 MiB and one largest sample, one at a time and as many as the run has writers.

    The 64 MiB are a yardstick of this test, not of the run: they shrink to what the run's own buffer and
    segment hold, so that they cannot fail where the run would not. The sample is never shrunk.
    """
    store = profile.store
    writers = store.writer_threads
    room = min(store.local_buffer_bytes / BUFFER_MARGIN, store.segment_bytes * USABLE_SEGMENT / 2)
    bulk = whole_words(min(BULK_BYTES, int(room / writers)))
    sample = whole_words(sample_bytes)
    # The run's budget never lets more of the largest samples into the store at once.
    most = max(1, min(writers, in_flight_bytes(profile.stream, profile.store) // sample))
    wanted = [
        (SMALL_BYTES, 1),
        (SMALL_BYTES, writers),
        (bulk, 1),
        (bulk, writers),
        (sample, 1),
        (sample, most),
    ]
    return tuple(
        _series(placement, size, concurrency, LEAST_ROUNDS[placement] if size == sample else 1)
        for placement in ("producer", "consumer")
        for size, concurrency in dict.fromkeys(wanted)
    )


def _series(placement: Placement, size: int, concurrency: int, least: int) -> Series:
    small = size == SMALL_BYTES
    return Series(
        placement=placement,
        size_bytes=size,
        concurrency=concurrency,
        warmups=WARMUPS,
        repetitions=SMALL_REPETITIONS if small else REPETITIONS,
        least=least,
        limit_s=SERIES_LIMIT_S,
        slowest_s=SLOWEST_S,
    )


def whole_words(size_bytes: int) -> int:
    """Size of the tensor that stands for so many bytes."""
    return max(SMALL_BYTES, -(-size_bytes // _WORD_BYTES) * _WORD_BYTES)

"""How long to wait before asking again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class BackOff:
    """Exponential back-off with jitter: many who failed together do not come back together.

    Args:
        first_s: Longest wait before the second attempt, seconds.
        most_s: Longest wait of all, seconds.
        source: Of the jitter.
    """

    first_s: float = 0.5
    most_s: float = 30.0
    source: random.Random = field(default_factory=random.Random)

    def wait_s(self, failures: int, at_least_s: float = 0.0) -> float:
        """Seconds to wait after `failures` failures (1 or more), half to all of the doubled limit.

        Args:
            at_least_s: What a server asked for with `Retry-After`; counts up to `most_s`.
        """
        limit = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 62))
        return max(limit * self.source.uniform(0.5, 1.0), min(at_least_s, self.most_s))

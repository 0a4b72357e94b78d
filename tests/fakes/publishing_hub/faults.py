"""Faults on demand: rules that say which request goes wrong, how, and how often.

A rule is an object of JSON:

    on       regular expression, searched in "METHOD /path"
    do       status | cut | slow | stale | kill
    skip     matching requests that pass before it acts (0)
    times    requests that it acts on (1); -1 is for ever
    when     before | after the request was carried out (before); for `cut` also `middle`: while its body
             comes in, and `late`: the connection is cut first, the request is carried out `seconds` later
    status, headers, seconds, pid     what the kind needs
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Rule:
    """One fault, and how often it acted."""

    on: str
    do: str
    skip: int = 0
    times: int = 1
    when: str = "before"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    pid: int = 0
    seen: int = 0

    def acts(self, request: str) -> bool:
        """Count a request that matches; True if this rule acts on it."""
        if not re.search(self.on, request):
            return False
        self.seen += 1
        return self.seen > self.skip and (self.times < 0 or self.seen <= self.skip + self.times)


class Faults:
    """The rules in force, and what was asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self.requests: list[dict[str, Any]] = []

    def set(self, rules: list[dict[str, Any]]) -> None:
        """Replace all rules and forget the requests so far."""
        with self._lock:
            self._rules = [Rule(**rule) for rule in rules]
            self.requests = []

    def take(self, request: str) -> Rule | None:
        """The rule that acts on this request; every rule that matches counts it."""
        with self._lock:
            acting = [rule for rule in self._rules if rule.acts(request)]
            return acting[0] if acting else None

    def note(self, method: str, path: str, size: int, status: int) -> None:
        """Remember an answered request; status 0 is a cut connection."""
        with self._lock:
            self.requests.append({"method": method, "path": path, "bytes": size, "status": status})

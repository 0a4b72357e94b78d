"""Program: one round trip from this host to another network namespace. Prints the facts as JSON.

`python round_trip_between.py REQUEST.json`: the master and the producer run where this program runs, the
consumer in the namespace that the request names (none: here, as after a mistake of a launcher).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from profiles.schema import Profile
from tasks.processes.launcher import LocalHandle, LocalLauncher, ProcessSpec
from tasks.run_folder import RunFolder, create_run
from tasks.validate import store_roundtrip_plan
from tasks.validate.store_roundtrip import round_trip
from tasks.validate.store_roundtrip_plan import StoreEnds


class NamespaceLauncher(LocalLauncher):
    """Puts the role `train` into another namespace."""

    def __init__(self, namespace: str):
        super().__init__()
        self._prefix = ("ip", "netns", "exec", namespace) if namespace else ()

    def start(self, spec: ProcessSpec, run: RunFolder) -> LocalHandle:
        if spec.role == "train":
            spec = dataclasses.replace(spec, argv=(*self._prefix, *spec.argv))
        return super().start(spec, run)


def main(request: dict[str, Any]) -> None:
    # Enough to see every size in every placement; the times are not what the tests are about.
    store_roundtrip_plan.SERIES_LIMIT_S = 0.1
    profile = Profile.model_validate(request["profile"])
    run = create_run(Path(request["folder"]), "r1", profile)
    target: Any = SimpleNamespace(hidden_size=576)
    launcher = NamespaceLauncher(request["namespace"])
    ends = StoreEnds(**request["ends"])
    facts = round_trip(profile, target, run, run.path / "01-validate", launcher, ends=ends)
    print(facts.model_dump_json())


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))

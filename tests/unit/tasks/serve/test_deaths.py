"""An error of a client names the server that died, and only one that did."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.errors import JobError, ServiceError, UsageError
from tasks.serve.deaths import telling_deaths


def server(status: int | None) -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(name="target"),
        log=Path("logs/target.log"),
        poll=lambda: status,
        tail=lambda lines: ["Killed process"],
    )


def test_the_end_of_a_dead_servers_log_stands_in_the_error() -> None:
    with (
        pytest.raises(ServiceError, match="target ended with signal 9") as info,
        telling_deaths(lambda: [server(None), server(-9)]),
    ):
        raise JobError("no connection")
    assert info.value.log_tail == ("Killed process",) and info.value.where == "logs/target.log"


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(JobError, match="no connection"), telling_deaths(lambda: [server(None)], wait_s=0):
        raise JobError("no connection")
    with pytest.raises(JobError, match="no connection"), telling_deaths(list):
        raise JobError("no connection")
    with pytest.raises(UsageError), telling_deaths(lambda: [server(1)]):
        raise UsageError("bad prompt")

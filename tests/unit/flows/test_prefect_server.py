"""A dead Prefect server never keeps a command waiting: neither at its start nor at its end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flows.cli.prefect_server import wait_until_ready
from tasks.errors import ServiceError
from tasks.processes.ports import free_port


def test_a_server_that_does_not_answer_is_named_with_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    with pytest.raises(ServiceError) as caught:
        wait_until_ready(url, 0.2)
    assert url in caught.value.where
    assert "unset PREFECT_API_URL" in caught.value.hint


def test_waiting_events_do_not_keep_the_process_from_ending() -> None:
    """Prefect's own exit waits without a bound for a server that is gone."""
    port = free_port()
    program = (
        "from prefect.events import emit_event; from flows.cli.prefect_server import send_what_waits; "
        "emit_event('a', resource={'prefect.resource.id': 'a'}); send_what_waits(0.5); print('sent')"
    )
    done = subprocess.run(
        (sys.executable, "-c", program),
        env={**os.environ, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "sent" in done.stdout, done.stderr

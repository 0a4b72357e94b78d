"""One real Prefect server with its pool for all tests of a session, and a checkout with small stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prefect_pages import Pages, served


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    """What `retrain-dspark ui` serves in a copy of the checkout whose flow has small stages."""
    with served(tmp_path_factory.mktemp("checkout"), small_stages=True) as found:
        yield found

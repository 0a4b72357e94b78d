"""Reads a version back from the hub by commit id: compared by hash, fetched whole, loaded."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

from tasks.errors import PublishError
from tasks.publish.hub.contents import Version, check_download, differences
from tasks.publish.hub.repository import Repository
from tasks.publish.hub.transfers import download

log = logging.getLogger("retrain_dspark")

Load = Callable[[Path], None]
"""Loads the draft of a folder as a server would; raises if it cannot be loaded."""


def read_back(
    repository: Repository, commit: str, version: Version, folder: Path, work: Path, load: Load
) -> None:
    """Compare what the hub holds at `commit` with the version in `folder`, then fetch and load it.

    Args:
        work: Folder for the fetched files; what came before an interruption is kept, and it is removed
            after success.

    Raises:
        PublishError: A file differs, or what came back does not load. Nothing was made visible yet.
    """
    if problems := differences(repository.tree(commit), version, folder):
        raise PublishError(
            "the hub does not hold what was sent: " + "; ".join(problems[:5]),
            where=f"{repository.name}@{commit}",
            hint="delete the side branch on the hub and run the publish stage again",
        )
    fetched = work / commit
    fetched.mkdir(parents=True, exist_ok=True, mode=0o700)
    download(repository, commit, version, fetched)
    try:
        check_download(fetched, version)
        load(fetched)
    except PublishError:
        shutil.rmtree(fetched, ignore_errors=True)  # a damaged piece must not be taken for a good one
        raise
    shutil.rmtree(work, ignore_errors=True)
    log.info("publish: hub: %s was read back, compared and loaded", version.name)

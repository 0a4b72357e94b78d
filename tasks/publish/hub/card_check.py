"""Has the hub check the card before the first byte is sent."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils._http import hf_raise_for_status

from tasks.errors import PublishError
from tasks.publish.hub.refusals import refusal
from tasks.publish.hub.repository import Repository


def check_card(repository: Repository, folder: Path) -> None:
    """Ask the hub whether it would take the card; what it checks at a commit is asked before the upload.

    Raises:
        PublishError: It would not, with what it says.
    """
    content = (folder / "README.md").read_text(encoding="utf-8")
    response = get_session().post(
        f"{repository.api.endpoint}/api/validate-yaml", json={"content": content, "repoType": "model"}
    )
    if response.status_code == 400:
        said = [str(one.get("message")) for one in response.json().get("errors", [])]
        raise PublishError(
            "the hub refuses the card: " + "; ".join(said or ["without a reason"]),
            where=f"{repository.name}: README.md",
            hint="correct publish.card and publish.license, and run the publish stage again",
        )
    try:
        hf_raise_for_status(response)
    except HfHubHTTPError as error:
        raise refusal(error, repository.hub) from None

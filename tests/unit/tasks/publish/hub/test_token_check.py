"""Before the run: may this token write there?"""

from __future__ import annotations

from typing import Any

import pytest
from publishing_hub import READER, STRANGER, WRITER, RunningHub, hasty, settings

from tasks.errors import PublishError, UsageError
from tasks.publish.hub.token_check import check_access, missing_token, why_not_make


def test_who_may_write_is_told_apart(hub: RunningHub) -> None:
    ours, team = settings(), settings(repo="team/draft")
    access = check_access(ours, WRITER, hasty(ours))
    assert (access.account, access.exists) == ("lab", False)
    assert check_access(team, WRITER, hasty(ours)).exists is False
    refusals = [
        (ours, "hf_unknown_canary", "the hub does not know the token"),
        (ours, READER, "the token of lab may only read"),
        (ours, STRANGER, "stranger may not make repositories for lab"),
        (settings(repo="club/draft"), WRITER, "lab may not make repositories for club"),
    ]
    for where, token, reason in refusals:
        with pytest.raises(UsageError) as caught:
            check_access(where, token, hasty(where))
        assert reason in caught.value.what and "HF_TOKEN" in caught.value.where
        assert token not in str(caught.value)


def test_a_repository_that_is_there_decides_itself(hub: RunningHub) -> None:
    from huggingface_hub import HfApi

    HfApi(hub.url, token=WRITER).create_repo("lab/draft")
    assert check_access(settings(), WRITER, hasty(settings())).exists
    with pytest.raises(UsageError, match="the token may not write into it"):
        check_access(settings(), STRANGER, hasty(settings()))


def test_a_hub_that_is_away_is_no_fault_of_the_token(hub: RunningHub) -> None:
    hub.fail({"on": "whoami", "do": "status", "status": 502, "times": -1})
    ours = settings(attempts=2)
    with pytest.raises(PublishError, match="the hub answered 502; given up after 2 tries"):
        check_access(ours, WRITER, hasty(ours))


def account(role: str, **more: Any) -> dict[str, Any]:
    return {"name": "lab", "orgs": [], "auth": {"accessToken": {"role": role, **more}}}


def test_fine_grained_tokens_are_read_by_their_scopes() -> None:
    scope = {"entity": {"type": "user", "name": "lab"}, "permissions": ["repo.write"]}
    reading = {**scope, "permissions": ["repo.content.read"]}
    assert why_not_make(settings(), account("fineGrained", fineGrained={"scoped": [scope]})) == ""
    refused = why_not_make(settings(), account("fineGrained", fineGrained={"scoped": [reading]}))
    assert "no permission to write for lab" in refused
    assert "no permission" in why_not_make(settings(repo="team/x"), account("fineGrained", fineGrained={}))


def test_a_missing_token_names_its_place() -> None:
    assert "the environment variable HF_TOKEN is empty" in missing_token(settings()).what
    assert "Prefect Secret 'hub'" in missing_token(settings(token_secret="hub")).what

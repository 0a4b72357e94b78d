"""What the profile alone tells is refused before hours of work."""

from __future__ import annotations

from typing import Any

import pytest
from drafts import REVISION, profile

from profiles.load import builtin_names, load_profile
from tasks.errors import ProfileError
from tasks.publish.refusals.early import refuse_unpublishable

NAMED = {"base_model": "acme/target"}
HUB = {"kind": "hub", "hub": {"repo": "acme/tiny"}}


@pytest.mark.parametrize("name", builtin_names())
def test_the_profiles_of_this_project_can_be_published(name: str) -> None:
    refuse_unpublishable(load_profile(name).profile)


@pytest.mark.parametrize(
    ("publish", "revision", "field"),
    [
        ({"license": "unknown"}, REVISION, "publish.license"),
        ({**HUB, "card": {}}, REVISION, "publish.card.base_model"),
        (HUB, None, "target.revision"),
        (
            {**HUB, "card": {"base_model": "acme/target", "language": ["Deutsch"]}},
            REVISION,
            "publish.card.language",
        ),
    ],
)
def test_a_profile_that_could_never_be_published(
    publish: dict[str, Any], revision: str | None, field: str
) -> None:
    good = profile(**publish)
    target = good.target.model_copy(update={"revision": revision})
    with pytest.raises(ProfileError) as caught:
        refuse_unpublishable(good.model_copy(update={"target": target}))
    assert caught.value.where == field and caught.value.hint


def test_all_of_it_is_said_at_once() -> None:
    bad = profile(license="", **{**HUB, "card": {}})
    bad = bad.model_copy(update={"target": bad.target.model_copy(update={"revision": None})})
    with pytest.raises(ProfileError) as caught:
        refuse_unpublishable(bad)
    assert caught.value.where == "publish.license, publish.card.base_model, target.revision"


def test_a_folder_of_this_machine_needs_neither() -> None:
    local = profile()
    refuse_unpublishable(
        local.model_copy(update={"target": local.target.model_copy(update={"revision": None})})
    )

"""Both sides' versions are compared before the first sample, and the error names both."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.errors import UsageError
from tasks.stream.versions import announce_versions, own_versions, require_same_versions

URL = "http://127.0.0.1:8000"


def manifest(**changed: str) -> dict[str, Any]:
    told: dict[str, Any] = {"metadata": {"num_tokens": 1}}
    announce_versions(told)
    told["metadata"]["versions"].update(changed)
    return told


def test_equal_versions_pass() -> None:
    assert "none" not in own_versions().values()
    require_same_versions(manifest(), URL)


def test_another_build_of_the_same_mooncake_passes() -> None:
    release = own_versions()["mooncake"].split(".post")[0]
    require_same_versions(manifest(mooncake=f"{release}.post9"), URL)
    require_same_versions(manifest(mooncake=release), URL)


@pytest.mark.parametrize(
    ("field", "version", "shown"),
    [
        ("hs_connectors", "0.8.0", "hs-connectors 0.8.0 on the server"),
        ("hs_connectors", "0.9.0.post1", "hs-connectors 0.9.0.post1 on the server"),
        ("mooncake", "0.3.1", "Mooncake 0.3.1 on the server"),
        ("mooncake", "none", "Mooncake none on the server"),
        ("format", "1", "format 1 on the server"),
    ],
)
def test_difference_names_both_versions_and_the_server(field: str, version: str, shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_same_versions(manifest(**{field: version}), URL)
    text = str(caught.value)
    assert shown in text and f"{own_versions()[field]} here" in text and URL in text


def test_all_differences_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        require_same_versions(manifest(format="1", hs_connectors="0.8.0"), URL)
    assert "format 1" in str(caught.value) and "hs-connectors 0.8.0" in str(caught.value)


@pytest.mark.parametrize("told", [{}, {"metadata": {}}, {"metadata": {"versions": "0.9.0"}}])
def test_server_with_upstreams_connector_is_recognised(told: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="another connector"):
        require_same_versions(told, URL)

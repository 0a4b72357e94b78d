from __future__ import annotations

import pytest

from tasks.processes.environment import child_environment
from tasks.redaction import looks_secret


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "VLLM_API_KEY",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "githubtoken",
    ],
)
def test_secret_names(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "TOKENIZERS_PARALLELISM", "HOME"])
def test_plain_names(name: str) -> None:
    assert not looks_secret(name)


def test_password_in_a_url() -> None:
    assert looks_secret("INDEX", "https://me:pw@host/simple") and not looks_secret(
        "INDEX", "https://host/a:b@c"
    )


def test_child_environment() -> None:
    inherited = {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/lib",
        "PREFECT_API_URL": "u",
        "MLFLOW_TRACKING_URI": "u",
        "HF_TOKEN": "t",
        "VLLM_API_KEY": "old",
    }
    env = child_environment(inherited, {"A": "1", "HF_HUB_OFFLINE": "0"}, {"VLLM_API_KEY": "new"})
    assert env == {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/lib",
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "A": "1",
        "HF_HUB_OFFLINE": "0",
        "VLLM_API_KEY": "new",
    }


def test_children_may_keep_compiled_modules() -> None:
    """An engine whose modules are never compiled spends 13 s more of a core on each start."""
    assert "PYTHONDONTWRITEBYTECODE" not in child_environment({"PYTHONDONTWRITEBYTECODE": "1"}, {}, {})

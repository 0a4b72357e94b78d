"""Secrets of the environment stay out of errors, records and closing lines."""

from __future__ import annotations

import pickle

import pytest

from tasks.errors import ServiceError
from tasks.redaction import redact, register_secret

URL = "postgresql://me:hunter22@db:5432/mlflow"


def test_passwords_of_addresses_are_masked() -> None:
    assert redact(f"cannot reach {URL} now") == "cannot reach postgresql://me:***@db:5432/mlflow now"
    assert redact("redis://:hunter22@cache") == "redis://:***@cache"
    assert redact("http://127.0.0.1:4200/api") == "http://127.0.0.1:4200/api"


def test_values_of_secret_variables_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-90c1")
    monkeypatch.setenv("OTHER_TOKEN", "canary-90c1-longer")
    assert redact("Bearer canary-90c1, canary-90c1-longer") == "Bearer ***, ***"


def test_registered_secrets_are_masked_though_no_variable_holds_them() -> None:
    assert redact("Bearer block-canary-77") == "Bearer block-canary-77"
    register_secret("block-canary-77")
    assert redact("Bearer block-canary-77") == "Bearer ***"
    register_secret("ab")  # masking every "ab" would destroy texts
    assert redact("table") == "table"


def test_errors_are_masked_wherever_they_go() -> None:
    error = ServiceError(f"{URL} refused", where=URL, hint=f"try {URL}", log_tail=(f"GET {URL}",))
    again = pickle.loads(pickle.dumps(error))
    for text in (str(error), repr(error), str(again)):
        assert "hunter22" not in text
    assert again.log_tail == ("GET postgresql://me:***@db:5432/mlflow",)

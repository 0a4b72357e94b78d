"""The rendered JobSet, against a golden file and the schema of its API.

`REWRITE_GOLDEN=1 pytest` writes the golden file anew. The schema is written out from the API references that
stand in it; unknown fields are refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.processes.jobset import manifest, manifest_text

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "jobset"
KUBERNETES = {
    "image": "registry.invalid/retrain-dspark:1",
    "volume_claim": "dspark-runs",
    "secret": "dspark-target",
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-GB300"},
    "resources": {"rdma/ib": "1"},
}


def profile(**kubernetes: Any) -> Profile:
    return load_profile("gb300-kimi-k3", {"launch": {"kubernetes": {**KUBERNETES, **kubernetes}}}).profile


def schema() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN / "schema.json").read_text(encoding="utf-8"))
    return read


def test_kimi_k3_as_a_job_set() -> None:
    """Two pods serve, one trains; word for word."""
    text = manifest_text(profile(), "k3", 93)
    assert yaml.safe_load(text) == manifest(profile(), "k3", 93)
    path = GOLDEN / "kimi-k3.yaml"
    if os.environ.get("REWRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("host_network", [False, True])
def test_it_follows_the_schema(host_network: bool) -> None:
    found = manifest(profile(host_network=host_network), "k3", 93)
    jsonschema.validate(found, schema(), cls=jsonschema.Draft202012Validator)
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert ("hostNetwork" in pod) is host_network


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("spec", "failurePolicy", "maxRestart"), 1),
        (("spec", "replicatedJobs", 0, "replicas"), "1"),
        (("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "restartPolicy"), "Sometimes"),
        (("spec", "successPolicy", "operator"), "Most"),
    ],
)
def test_the_schema_refuses_mistakes(where: tuple[Any, ...], value: Any) -> None:
    """A schema that accepts everything would prove nothing."""
    found = manifest(profile(), "k3", 93)
    inner: Any = found
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, schema(), cls=jsonschema.Draft202012Validator)


def test_no_secret_is_in_it_and_its_shell_can_be_read() -> None:
    """The key comes from a Secret; each script passes the shell's own parser."""
    found = manifest(profile(), "k3", 93)
    assert "api-key" in json.dumps(found) and "VLLM_API_KEY=" not in json.dumps(found)
    shell = shutil.which("sh")
    assert shell is not None
    for job in found["spec"]["replicatedJobs"]:
        script = job["template"]["spec"]["template"]["spec"]["containers"][0]["command"][2]
        subprocess.run([shell, "-n", "-c", script], check=True)


@pytest.mark.parametrize(
    ("over", "name", "says"),
    [
        ({"image": ""}, "k3", "does not say launch.kubernetes.image"),
        ({"image": "", "secret": ""}, "k3", "launch.kubernetes.image, secret"),
        ({}, "K3", "cannot be the name"),
    ],
)
def test_what_is_missing_is_named(over: dict[str, Any], name: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        manifest(profile(**over), name, 93)

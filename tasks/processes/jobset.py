"""Renders a Kubernetes JobSet: nodes that serve, and a node that captures and trains. Nothing is started.

`python -m tasks.processes.jobset PROFILE NAME LAYERS` prints it; LAYERS is the target's number of
hidden layers. Serving pods run the store's master and vLLM; the training pod runs the flow, attached to
them. The set has succeeded when that has.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.errors import UsageError
from tasks.processes.launcher import ProcessSpec
from tasks.serve.command import layer_ids, target_argv, target_environment
from tasks.serve.multi_node import across_nodes

API_VERSION = "jobset.x-k8s.io/v1alpha2"
API_PORT, MASTER_PORT, MEETING_PORT = 8000, 50051, 29501
_NAME = re.compile(r"^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$")
_RUNS = "/runs"
_READY_FAILURES = 720


def manifest(profile: Profile, name: str, num_hidden_layers: int) -> dict[str, Any]:
    """The JobSet of a run.

    Args:
        name: Of the set; the training pod reads its profile from `/runs/NAME.yaml`.
        num_hidden_layers: Of the target, whose folder only the pods can read.

    Raises:
        UsageError: The profile lacks what the manifest needs, or the name cannot be one of Kubernetes.
    """
    _require(profile, name)
    head = f"{name}-serve-0-0.{name}"
    return {
        "apiVersion": API_VERSION,
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": "retrain-dspark"}},
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["train"]},
            # A restart would lose what is in the store; the run is resumed by a set of the same run instead.
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                _replicated(profile, "serve", _serving(profile, head, num_hidden_layers)),
                {
                    **_replicated(profile, "train", _training(profile, name, head)),
                    "dependsOn": [{"name": "serve", "status": "Ready"}],
                },
            ],
        },
    }


def _require(profile: Profile, name: str) -> None:
    if not _NAME.match(name):
        raise UsageError(
            f"'{name}' cannot be the name of a JobSet",
            where="NAME",
            hint="lower-case letters, digits and hyphens, at most 42, beginning with a letter",
        )
    missing = [f for f in ("image", "volume_claim", "secret") if not getattr(profile.launch.kubernetes, f)]
    if missing:
        raise UsageError(
            f"the profile does not say launch.kubernetes.{', '.join(missing)}",
            where=f"launch.kubernetes.{missing[0]}",
            hint="set them, for example with an overlay of your cluster",
        )
    if profile.hardware.roles.colocated or profile.hardware.roles.train.nodes != 1:
        raise UsageError(
            "a JobSet needs roles on nodes of their own, and one node that trains",
            where="hardware.roles",
            hint="set hardware.roles.colocated to false and hardware.roles.train.nodes to 1",
        )


def _serving(profile: Profile, head: str, num_hidden_layers: int) -> dict[str, Any]:
    """The container of a serving pod; which part it plays, its index says."""
    profile = profile.model_copy(
        update={
            "store": profile.store.model_copy(update={"host": head, "interface": ""}),
            "serve": profile.serve.model_copy(update={"host": "0.0.0.0"}),
        }
    )
    layers = layer_ids(profile, num_hidden_layers)
    master_address = f"{head}:{MASTER_PORT}"
    argv = target_argv(profile, _target_folder(profile), layers, API_PORT, master_address, head)
    spec = ProcessSpec("target", "serve", "serve", ("python3", *argv[1:]), env=target_environment(profile))
    specs = across_nodes(spec, profile.hardware.roles.serve.nodes, head, MEETING_PORT)
    cases = [f"  {rank}) exec {shlex.join(one.argv)} ;;" for rank, one in enumerate(specs)]
    master = (
        f'mooncake_master -rpc_address="$POD_IP" -rpc_port={MASTER_PORT} -metrics_host=127.0.0.1 '
        "-enable_http_metadata_server=false -enable_metric_reporting=false -client_ttl=60 &"
    )
    script = [
        "set -eu",
        f'if [ "$JOB_COMPLETION_INDEX" = 0 ]; then {master} fi',
        'case "$JOB_COMPLETION_INDEX" in',
        *cases,
        "esac",
    ]
    probe = {"exec": {"command": ["/bin/sh", "-c", _PROBE]}, "periodSeconds": 5}
    return {
        "command": ["/bin/sh", "-c", "\n".join(script)],
        "env": [*_environment(profile), *({"name": n, "value": v} for n, v in sorted(spec.env.items()))],
        "readinessProbe": {**probe, "failureThreshold": _READY_FAILURES},
    }


_PROBE = (
    f'[ "$JOB_COMPLETION_INDEX" != 0 ] || python3 -c "import urllib.request as r; '
    f"r.urlopen('http://127.0.0.1:{API_PORT}/health', timeout=3)\""
)


def _training(profile: Profile, name: str, head: str) -> dict[str, Any]:
    """The container of the training pod: the flow, attached to the serving pods."""
    words = ["retrain-dspark", "run", "-p", f"{_RUNS}/{name}.yaml"]
    for assignment in (
        "launch.kind=local",
        "serve.kind=attach",
        f"serve.url=http://{head}:{API_PORT}",
        "serve.api_key_env=VLLM_API_KEY",
        f"store.master={head}:{MASTER_PORT}",
    ):
        words += ["--set", assignment]
    command = f'exec {shlex.join(words)} --set "store.host=$POD_IP"'
    return {
        "command": ["/bin/sh", "-c", command],
        "env": [*_environment(profile), {"name": "RETRAIN_DSPARK_RUNS", "value": _RUNS}],
    }


def _environment(profile: Profile) -> list[dict[str, Any]]:
    """Each pod's own address, and the key of the target: from a Secret, never written here."""
    key = {"secretKeyRef": {"name": profile.launch.kubernetes.secret, "key": "api-key"}}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    interface = profile.launch.interface
    fabric = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME") if interface else ()
    return [
        {"name": "POD_IP", "valueFrom": address},
        {"name": "VLLM_HOST_IP", "valueFrom": address},
        {"name": "RETRAIN_DSPARK_NODE_ADDRESS", "valueFrom": address},
        {"name": "VLLM_API_KEY", "valueFrom": key},
        *({"name": variable, "value": interface} for variable in fabric),
    ]


def _replicated(profile: Profile, role: str, container: dict[str, Any]) -> dict[str, Any]:
    """One job with a pod for each node of the role; no pod comes back by itself."""
    kubernetes = profile.launch.kubernetes
    need = profile.hardware.roles.serve if role == "serve" else profile.hardware.roles.train
    gpus = {"nvidia.com/gpu": str(need.gpus_per_node)} if need.gpus_per_node else {}
    limits = {**gpus, **kubernetes.resources}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "containers": [
            {
                "name": role,
                "image": kubernetes.image,
                **container,
                **({"resources": {"limits": limits}} if limits else {}),
                "volumeMounts": [
                    {"name": "runs", "mountPath": _RUNS},
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                ],
            }
        ],
        "volumes": [
            {"name": "runs", "persistentVolumeClaim": {"claimName": kubernetes.volume_claim}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
        ],
        # One pod on a node: each has all of its GPUs and the whole fabric.
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_APART]}},
        **({"nodeSelector": dict(kubernetes.node_selector)} if kubernetes.node_selector else {}),
        **({"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if kubernetes.host_network else {}),
    }
    job = {
        "completionMode": "Indexed",
        "parallelism": need.nodes,
        "completions": need.nodes,
        "backoffLimit": 0,
        "template": {"metadata": {"labels": {"app.kubernetes.io/name": "retrain-dspark"}}, "spec": pod},
    }
    return {"name": role, "replicas": 1, "template": {"spec": job}}


_APART = {
    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": "retrain-dspark"}},
    "topologyKey": "kubernetes.io/hostname",
}


def _target_folder(profile: Profile) -> Path:
    return Path(_RUNS) / profile.target.model  # an absolute one stays as it is


class _Dumper(yaml.SafeDumper):
    """Scripts as blocks that can be read, and every value written out where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def manifest_text(profile: Profile, name: str, num_hidden_layers: int) -> str:
    """The manifest as YAML; arguments and errors as of `manifest`."""
    found = manifest(profile, name, num_hidden_layers)
    return yaml.dump(found, Dumper=_Dumper, sort_keys=False, width=1000)


def main() -> None:
    try:
        print(manifest_text(load_profile(sys.argv[1]).profile, sys.argv[2], int(sys.argv[3])), end="")
    except UsageError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

"""Kubernetes manifests of a recipe: a Deployment, or a LeaderWorkerSet where several nodes are one server."""

from __future__ import annotations

import math
from typing import Any

from tasks.errors import UsageError
from tasks.publish.serving_compose import DRAFT, TARGET
from tasks.publish.serving_recipe import HEAD_ADDRESS, HUB_TOKEN, KEY, NODE_RANK, Recipe, Variable
from tasks.publish.serving_text import header, yaml_text

_PROBE_S = 10
_LIVE_FAILURES = 6
_GIVEN = {HEAD_ADDRESS: "$(LWS_LEADER_ADDRESS)", NODE_RANK: "$(LWS_WORKER_INDEX)"}
"""Variables that a LeaderWorkerSet (0.6 and newer) puts into each pod."""
_LEADER = "leaderworkerset.sigs.k8s.io/worker-index"


def kubernetes(recipe: Recipe) -> str:
    """Text of the manifests. Secrets are taken from the Secret that the header names.

    Raises:
        UsageError: Several nodes, and no interface: pods have no place to ask for one.
    """
    if recipe.nodes > 1 and not recipe.interface:
        raise UsageError(
            "the interface between the nodes is not known, and a pod cannot ask for it",
            where="deploy.interface",
            hint="--set deploy.interface=NAME, e.g. eth0 of the pods or that of the fabric",
        )
    workload = _leader_worker_set(recipe) if recipe.nodes > 1 else _deployment(recipe)
    return header(recipe, "k8s", _usage(recipe)) + yaml_text(workload, _service(recipe))


def _usage(recipe: Recipe) -> tuple[str, ...]:
    lines = [
        f"First: kubectl create secret generic {_secret(recipe)} --from-env-file=serve.env",
        f"       (serve.env holds {KEY}=... and, for gated repositories, {HUB_TOKEN}=...)",
    ]
    if recipe.nodes > 1:
        lines.append("Needs the LeaderWorkerSet controller, 0.6 or newer, in the cluster.")
    for place, mount in ((recipe.target, TARGET), (recipe.draft, DRAFT)):
        if place.folder is not None:
            lines.append(f"Copy {place.folder} into the volume claim {_claim(recipe, mount)}.")
    return tuple(lines)


def _labels(recipe: Recipe) -> dict[str, str]:
    return {"app.kubernetes.io/name": recipe.name, "app.kubernetes.io/component": "vllm"}


def _metadata(recipe: Recipe, name: str) -> dict[str, Any]:
    return {"name": name, "labels": _labels(recipe)}


def _deployment(recipe: Recipe) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(recipe, recipe.name),
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # a second server would wait for the first one's GPUs
            "selector": {"matchLabels": _labels(recipe)},
            "template": _pod(recipe, None),
        },
    }


def _leader_worker_set(recipe: Recipe) -> dict[str, Any]:
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(recipe, recipe.name),
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": recipe.nodes,
                # A rank that dies leaves the others in a collective that never ends.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(recipe, "0"),
                "workerTemplate": _pod(recipe, NODE_RANK),
            },
        },
    }


def _service(recipe: Recipe) -> dict[str, Any]:
    selector = _labels(recipe) | ({_LEADER: "0"} if recipe.nodes > 1 else {})
    return {
        "apiVersion": "v1",
        "kind": "Service",
        # Not the workload's own name: a LeaderWorkerSet makes a headless service of that name.
        "metadata": _metadata(recipe, f"{recipe.name}-http"),
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": recipe.port, "targetPort": recipe.port}],
        },
    }


def _pod(recipe: Recipe, rank: str | None) -> dict[str, Any]:
    claims = [mount for place, mount in ((recipe.target, TARGET), (recipe.draft, DRAFT)) if place.folder]
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    volumes += [
        {"name": mount[1:], "persistentVolumeClaim": {"claimName": _claim(recipe, mount), "readOnly": True}}
        for mount in claims
    ]
    container = _container(recipe, rank)
    container["volumeMounts"] = [
        {"name": "shm", "mountPath": "/dev/shm"},
        *({"name": mount[1:], "mountPath": mount, "readOnly": True} for mount in claims),
    ]
    return {
        "metadata": {"labels": _labels(recipe)},
        "spec": {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 60},
    }


def _container(recipe: Recipe, rank: str | None) -> dict[str, Any]:
    words = (
        *recipe.model_words(recipe.target.at(TARGET)),
        *recipe.words(host="0.0.0.0", draft=recipe.draft.at(DRAFT), rank=rank),
    )
    program = ["/app/.venv/bin/python", *words[:2]] if recipe.cpu else list(words[:2])
    container: dict[str, Any] = {
        "name": "vllm",
        "image": recipe.image,
        "command": program,
        "args": [_word(word) for word in words[2:]],
        "env": _environment(recipe, rank is not None),
    }
    if not recipe.cpu:
        container["resources"] = {"limits": {"nvidia.com/gpu": recipe.gpus_per_node}}
    if recipe.privileged:
        container["securityContext"] = {"privileged": True}
    if rank in (None, "0"):
        container |= {"ports": [{"name": "http", "containerPort": recipe.port}], **_probes(recipe)}
    return container


def _word(word: str) -> str:
    """A word of the command line, safe from the `$(NAME)` that Kubernetes replaces."""
    return _GIVEN[word] if isinstance(word, Variable) else word.replace("$(", "$$(")


def _environment(recipe: Recipe, spread: bool) -> list[dict[str, Any]]:
    plain = dict(recipe.environment)
    if recipe.interpreter:
        plain["PYTHONPATH"] = f"{DRAFT}/cpu"
    if spread:
        plain |= {"GLOO_SOCKET_IFNAME": recipe.interface, "NCCL_SOCKET_IFNAME": recipe.interface}
    found: list[dict[str, Any]] = [
        {"name": name, "value": value.replace("$(", "$$(")} for name, value in plain.items()
    ]
    for name in (KEY, HUB_TOKEN):
        optional = {"optional": True} if name == HUB_TOKEN else {}
        reference = {"secretKeyRef": {"name": _secret(recipe), "key": name, **optional}}
        found.append({"name": name, "valueFrom": reference})
    return found


def _probes(recipe: Recipe) -> dict[str, Any]:
    """Health needs no key. The start may take as long as the recipe allows, a running server may not."""
    health = {"httpGet": {"path": "/health", "port": recipe.port}, "periodSeconds": _PROBE_S}
    starting = {**health, "failureThreshold": math.ceil(recipe.ready_timeout_s / _PROBE_S)}
    return {
        "startupProbe": starting,
        "readinessProbe": health,
        "livenessProbe": {**health, "timeoutSeconds": 5, "failureThreshold": _LIVE_FAILURES},
    }


def _secret(recipe: Recipe) -> str:
    return f"{recipe.name}-serve"


def _claim(recipe: Recipe, mount: str) -> str:
    return f"{recipe.name}-{mount[1:]}"

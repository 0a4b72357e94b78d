"""A compose file of a recipe: one service on one node; a head and a worker where several nodes serve."""

from __future__ import annotations

from typing import Any

from tasks.publish.serving_recipe import HUB_TOKEN, INTERFACE, KEY, NODE_RANK, Recipe, Variable
from tasks.publish.serving_text import header, yaml_text

TARGET, DRAFT = "/target", "/draft"
_HUB_CACHE = "/root/.cache/huggingface"
_ENV_FILE = "serve.env"
_CPU_PYTHON = "/app/.venv/bin/python"
_ASK_HEALTH = "import urllib.request as u; u.urlopen('http://127.0.0.1:{port}/health', timeout=5)"


def compose(recipe: Recipe) -> str:
    """Text of the compose file. Secrets stand in it by name; `docker compose --env-file` fills them in."""
    if recipe.nodes == 1:
        services = {"vllm": _service(recipe, None)}
    else:
        services = {"head": _service(recipe, "0"), "worker": _service(recipe, NODE_RANK)}
    document: dict[str, Any] = {"name": recipe.name, "services": services}
    if _from_hub(recipe):
        document["volumes"] = {"huggingface": {}}
    return header(recipe, "compose", _usage(recipe)) + yaml_text(document)


def _usage(recipe: Recipe) -> tuple[str, ...]:
    keys = f"{_ENV_FILE} holds {KEY}=... and, for gated repositories, {HUB_TOKEN}=...; keep it to yourself."
    start = f"docker compose --env-file {_ENV_FILE} -f FILE"
    if recipe.nodes == 1:
        return (keys, f"Start: {start} up")
    interface = "" if recipe.interface else f", {INTERFACE} (network interface between the nodes)"
    return (
        f"{recipe.nodes} nodes with {recipe.gpus_per_node} GPUs each. {keys}",
        f"It also holds HEAD_ADDRESS (address of the first node){interface}.",
        f"First node:      {start} --profile head up",
        f"Node N (from 1): {NODE_RANK}=N {start} --profile worker up",
    )


def _service(recipe: Recipe, rank: str | None) -> dict[str, Any]:
    target, draft = recipe.target.at(TARGET), recipe.draft.at(DRAFT)
    words = (*recipe.model_words(target), *recipe.words(host="0.0.0.0", draft=draft, rank=rank))
    program, given = ((_CPU_PYTHON, *words[:2]), words[2:]) if recipe.cpu else (words[:2], words[2:])
    service: dict[str, Any] = {
        "image": recipe.image,
        "entrypoint": list(program),
        "command": [_word(word) for word in given],
        "environment": _environment(recipe, rank is not None),
        "ipc": "host",  # vLLM's processes exchange tensors through /dev/shm
        "restart": "unless-stopped",
    }
    if rank is not None:
        service |= {"profiles": ["head" if rank == "0" else "worker"], "network_mode": "host"}
        service["ulimits"] = {"memlock": -1, "stack": 67108864}  # the fabric registers memory
    else:
        service["ports"] = [f"{recipe.port}:{recipe.port}"]
    if recipe.privileged:
        service["privileged"] = True
    if mounts := _mounts(recipe):
        service["volumes"] = mounts
    if rank in (None, "0"):
        service["healthcheck"] = _health(recipe, _CPU_PYTHON if recipe.cpu else "python3")
    if not recipe.cpu:
        gpus = {"driver": "nvidia", "count": recipe.gpus_per_node, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    return service


def _word(word: str) -> str:
    """A word of the command line, safe from compose's own `$`."""
    if word is NODE_RANK:
        return f"${{{word}:-1}}"  # not required: compose reads the worker's words for the head too
    if isinstance(word, Variable):
        return f"${{{word}:?set {word} in {_ENV_FILE}}}"
    return word.replace("$", "$$")


def _environment(recipe: Recipe, spread: bool) -> dict[str, str]:
    found = {name: value.replace("$", "$$") for name, value in recipe.environment.items()}
    if recipe.interpreter:
        found["PYTHONPATH"] = f"{DRAFT}/cpu"
    if spread:
        interface = recipe.interface or _word(INTERFACE)
        found |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    required = f"${{{KEY}:?set {KEY} in {_ENV_FILE}}}"
    return {**found, KEY: required, HUB_TOKEN: f"${{{HUB_TOKEN}:-}}"}


def _mounts(recipe: Recipe) -> list[dict[str, Any]]:
    folders = ((recipe.target.folder, TARGET), (recipe.draft.folder, DRAFT))
    mounts: list[dict[str, Any]] = [
        {"type": "bind", "source": str(folder).replace("$", "$$"), "target": inside, "read_only": True}
        for folder, inside in folders
        if folder is not None
    ]
    if _from_hub(recipe):
        mounts.append({"type": "volume", "source": "huggingface", "target": _HUB_CACHE})
    return mounts


def _from_hub(recipe: Recipe) -> bool:
    return recipe.target.folder is None or recipe.draft.folder is None


def _health(recipe: Recipe, python: str) -> dict[str, Any]:
    return {
        "test": ["CMD", python, "-c", _ASK_HEALTH.format(port=recipe.port)],
        "interval": "10s",
        "timeout": "10s",
        "retries": 3,
        "start_period": f"{recipe.ready_timeout_s:.0f}s",
    }

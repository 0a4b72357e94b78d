"""A Slurm batch script of a recipe: one step on each node, and a wait until the server is healthy."""

from __future__ import annotations

import shlex

from tasks.publish.serving_recipe import (
    HEAD_ADDRESS,
    HUB_TOKEN,
    INTERFACE,
    KEY,
    NODE_RANK,
    Recipe,
    Variable,
)
from tasks.publish.serving_text import header


def slurm(recipe: Recipe) -> str:
    """Text of the batch script. Secrets come from the environment that `sbatch` hands on, by name."""
    options = [f"#SBATCH --job-name=serve-{recipe.name}", f"#SBATCH --nodes={recipe.nodes}"]
    options += ["#SBATCH --ntasks-per-node=1", "#SBATCH --output=%x-%j.log"]
    options += (
        [] if recipe.cpu else [f"#SBATCH --gpus-per-node={recipe.gpus_per_node}", "#SBATCH --exclusive"]
    )
    script = _SCRIPT.format(
        options="\n".join(options),
        key=KEY,
        hub_token=HUB_TOKEN,
        port=recipe.port,
        ready_s=f"{recipe.ready_timeout_s:.0f}",
        exports=_exports(recipe),
        interface=_interface(recipe),
        start=_start(recipe),
    )
    return "#!/usr/bin/env bash\n" + header(recipe, "slurm", _usage(recipe)) + script


def _usage(recipe: Recipe) -> tuple[str, ...]:
    return (
        f"export {KEY}=... (and {HUB_TOKEN}=... for gated repositories), then: sbatch FILE",
        "Account, partition and the like: options of sbatch. A container: SRUN_OPTIONS, e.g.",
        f"SRUN_OPTIONS='--container-image={recipe.image}' (pyxis).",
    )


def _exports(recipe: Recipe) -> str:
    values = dict(recipe.environment)
    if recipe.interpreter:
        values["PYTHONPATH"] = f"{recipe.draft.here()}/cpu"
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in values.items())


def _interface(recipe: Recipe) -> str:
    """The fabric's interface, chosen once and handed to every library that would choose its own."""
    if recipe.nodes == 1:
        return "HEAD_ADDRESS=127.0.0.1"
    given = f"{INTERFACE}={shlex.quote(recipe.interface)}" if recipe.interface else _ASK_INTERFACE
    return f"{given}\n{_HEAD}"


def _start(recipe: Recipe) -> str:
    if recipe.nodes == 1:
        return f"step 0 {_line(recipe, None)}"
    return (
        f"step 0 {_line(recipe, '0')}\n"
        f"for (({NODE_RANK} = 1; {NODE_RANK} < {recipe.nodes}; {NODE_RANK}++)); do\n"
        f'    step "${NODE_RANK}" {_line(recipe, NODE_RANK)}\n'
        "done"
    )


def _line(recipe: Recipe, rank: str | None) -> str:
    program = ("python",) if recipe.cpu else ()
    words = (
        *program,
        *recipe.model_words(recipe.target.here()),
        *recipe.words(host="0.0.0.0", draft=recipe.draft.here(), rank=rank),
    )
    return " ".join(f'"${word}"' if isinstance(word, Variable) else shlex.quote(word) for word in words)


_ASK_INTERFACE = f""": "${{{INTERFACE}:?export it: the network interface between the nodes, e.g. ib0}}\""""
_HEAD = f"""export NCCL_SOCKET_IFNAME="${INTERFACE}" GLOO_SOCKET_IFNAME="${INTERFACE}"
# The address of the first node on that interface, as that node has it.
{HEAD_ADDRESS}="$(srun --nodes=1 --ntasks=1 --nodelist="${{NODES[0]}}" \\
    ip -4 -o addr show dev "${INTERFACE}" | awk '{{split($4, a, "/"); print a[1]; exit}}')"
if [ -z "${HEAD_ADDRESS}" ]; then
    echo "node ${{NODES[0]}} has no IPv4 address on ${INTERFACE}" >&2
    exit 1
fi"""

_SCRIPT = """{options}
set -euo pipefail
: "${{{key}:?export it before sbatch: the key that clients must send}}"
export {key} {hub_token}="${{{hub_token}:-}}"
mapfile -t NODES < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
{interface}
{exports}

STEPS=()
end() {{ trap - EXIT; kill "${{STEPS[@]}}" 2>/dev/null || true; wait || true; }}
trap end EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
step() {{
    local node="$1"
    shift
    srun --nodes=1 --ntasks=1 --nodelist="${{NODES[$node]}}" --label ${{SRUN_OPTIONS:-}} "$@" &
    STEPS+=("$!")
}}
{start}

alive() {{
    local step
    for step in "${{STEPS[@]}}"; do kill -0 "$step" 2>/dev/null || return 1; done
}}
# Ready is what answers, not what was started; a step that dies ends the wait at once.
HEALTH="http://${{HEAD_ADDRESS}}:{port}/health"
until curl --silent --noproxy "*" --fail --max-time 5 --output /dev/null "$HEALTH"; do
    if ! alive; then echo "a step ended before the server was ready" >&2; exit 1; fi
    if ((SECONDS > {ready_s})); then echo "not ready after {ready_s} s" >&2; exit 1; fi
    sleep "${{POLL_S:-5}}"
done
echo "ready: http://${{NODES[0]}}:{port}/v1 after ${{SECONDS}} s"
# One rank that ends leaves the others in a collective that never does, so all end with it.
STATUS=0
wait -n "${{STEPS[@]}}" || STATUS=$?
echo "a step ended with status $STATUS" >&2
exit "$((STATUS == 0 ? 1 : STATUS))"
"""

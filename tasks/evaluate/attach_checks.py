"""Do arms that run already fit each other? As far as vLLM tells: models, version, metrics, server_info.

What an endpoint does not tell is said, not assumed: `/server_info` answers only with VLLM_SERVER_DEV_MODE=1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from profiles.schema import Profile
from tasks.errors import ServiceError
from tasks.evaluate.attach import PLAIN, ArmAddress, AttachedArm
from tasks.measure.counters import ACCEPTED_PER_POSITION, Scrape, parse_scrape
from tasks.serve.vllm_http import Server

_PREFIX_CACHE = re.compile(r'^vllm:cache_config_info\{.*\benable_prefix_caching="(\w+)"', re.MULTILINE)


@dataclass(frozen=True)
class _Told:
    """What one server says of itself."""

    address: ArmAddress
    server: Server
    version: str
    root: str
    max_model_len: int | None
    speculates: bool
    draft_tokens: int
    prefix_caching: bool | None
    speculative: dict[str, Any] | None
    """Its speculative configuration; None where it does not tell."""
    dtype: str | None
    max_num_seqs: int | None


def attach_arms(profile: Profile, addresses: Sequence[ArmAddress]) -> tuple[AttachedArm, ...]:
    """Ask all arms what they are, and refuse what cannot be compared.

    Raises:
        UsageError: A key's variable is not set.
        ServiceError: One does not answer or lacks the model; or they differ in engine, model or length; or
            the plain arm speculates, or another does not. Everything is named at once.
    """
    told = [_ask(profile, address) for address in addresses]
    faults = [*_own_faults(told), *_differences(told)]
    if faults:
        raise ServiceError(
            "the running servers cannot be compared: " + "; ".join(faults),
            where="--arm",
            hint="start them alike but for the draft; nothing of them was changed",
        )
    return tuple(_attached(one) for one in told)


def _ask(profile: Profile, address: ArmAddress) -> _Told:
    name = profile.serve.served_name
    server = Server(address.url, name, address.key())
    rows = server.model_rows()
    if name not in rows and len(rows) == 1:
        name = next(iter(rows))
        server = Server(address.url, name, server.api_key)
    if name not in rows:
        raise ServiceError(
            f"arm {address.name} serves {', '.join(sorted(rows)) or 'nothing'}, not '{name}'",
            where=f"--arm {address.name}={address.url}",
            hint="name the model: --set serve.served_name=...",
        )
    text = server.metrics()
    scrape = parse_scrape(text, where=f"{address.url}/metrics")
    caching = _PREFIX_CACHE.search(text)
    config = _config(server)
    length = rows[name].get("max_model_len")
    return _Told(
        address=address,
        server=server,
        version=server.version(),
        root=str(rows[name].get("root") or ""),
        max_model_len=length if isinstance(length, int) else None,
        speculates=scrape.has_speculation,
        draft_tokens=_positions(scrape),
        prefix_caching=caching[1] == "True" if caching else None,
        speculative=_part(config, "speculative_config"),
        dtype=_dtype(config),
        max_num_seqs=_whole(_part(config, "scheduler_config").get("max_num_seqs")),
    )


def _positions(scrape: Scrape) -> int:
    """K: how many draft positions the server counts."""
    return len({dict(labels)["position"] for name, labels in scrape.values if name == ACCEPTED_PER_POSITION})


def _config(server: Server) -> dict[str, Any]:
    """The server's own configuration; empty where it does not tell (no development mode)."""
    try:
        config = server.get("/server_info?config_format=json").json().get("vllm_config")
    except (ServiceError, ValueError, AttributeError):
        return {}
    return config if isinstance(config, dict) else {}


def _part(config: dict[str, Any], name: str) -> dict[str, Any]:
    part = config.get(name)
    return part if isinstance(part, dict) else {}


def _dtype(config: dict[str, Any]) -> str | None:
    """`bfloat16` for `torch.bfloat16`; None where the server does not tell."""
    told = _part(config, "model_config").get("dtype")
    return str(told).removeprefix("torch.") if told else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _own_faults(told: Sequence[_Told]) -> list[str]:
    """An arm that is not what its name says."""
    faults = []
    for one in told:
        if one.address.name == PLAIN and one.speculates:
            faults.append("the arm without a draft counts drafts: it speculates")
        elif one.address.name != PLAIN and not one.speculates:
            faults.append(f"arm {one.address.name} counts no drafts: it does not speculate")
    return faults


def _differences(told: Sequence[_Told]) -> list[str]:
    """Settings in which an arm differs from the plain one."""
    plain = next(one for one in told if one.address.name == PLAIN)
    faults = []
    for one in told:
        if one.address.url == plain.address.url and one is not plain:
            faults.append(f"arm {one.address.name} is the same server as the arm without a draft")
        pairs = (
            ("is vLLM", one.version, plain.version),
            ("serves", one.root, plain.root),
            ("takes tokens up to", one.max_model_len, plain.max_model_len),
            ("has the type", one.dtype, plain.dtype),
            ("has prefix caching", one.prefix_caching, plain.prefix_caching),
        )
        faults += [
            f"arm {one.address.name} {what} {ours}, the arm without a draft {theirs}"
            for what, ours, theirs in pairs
            if ours != theirs and None not in (ours, theirs)
        ]
    return faults


def _attached(one: _Told) -> AttachedArm:
    return AttachedArm(
        name=one.address.name,
        url=one.address.url,
        served_name=one.server.served_name,
        api_key=one.server.api_key,
        engine=f"vllm {one.version}",
        draft_tokens=one.draft_tokens,
        target=one.root,
        method=_method(one),
        dtype=one.dtype,
        max_num_seqs=one.max_num_seqs,
        prefix_caching=one.prefix_caching,
        notes=tuple(_notes(one)),
    )


def _method(one: _Told) -> str | None:
    if not one.speculates:
        return "none"
    told = (one.speculative or {}).get("method")
    return str(told) if told else None


def _notes(one: _Told) -> list[str]:
    said = [f"vLLM {one.version}", f"model {one.root or 'unnamed'}"]
    if one.speculates:
        known = one.speculative or {}
        method = f" ({known['method']})" if known.get("method") else ", its method is not told"
        said.append(f"{one.draft_tokens} draft tokens{method}")
    if one.prefix_caching:
        said.append("prefix caching is on: prompts that come again start sooner than new ones")
    if one.prefix_caching is None:
        said.append("whether it caches prefixes is not told")
    if one.dtype is None:
        said.append("its type is not told")
    return [f"arm {one.address.name}: {', '.join(said)}"]

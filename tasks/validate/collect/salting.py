"""Salted identifiers: a record can be shared and compared without telling which machine it came from."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from typing import Any
from uuid import UUID

from tasks.validate.collect.unobserved import not_offered

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_EMPTY = re.compile(r"^[0\-:. ]*$")
_SHORTEST = 4
"""Shorter identifiers are not searched for in texts: they would match inside numbers."""


class Salt:
    """Replaces identifiers by hashes: one identifier by one hash, so that what is shared stays shared."""

    def __init__(self, value: bytes | None = None):
        self._value = secrets.token_bytes(16) if value is None else value

    def facts(self, document: dict[str, Any]) -> dict[str, Any]:
        """A copy of a record (JSON) with node, GPU, rack and network identifiers replaced, in texts too."""
        replaced: dict[str, str] = {}
        result = self._walk(document, "", replaced)
        names = sorted((old for old in replaced if len(old) >= _SHORTEST), key=len, reverse=True)
        errors = {
            _in_text(path, names, replaced): _in_text(why, names, replaced)
            for path, why in (document.get("errors") or {}).items()
        }
        store = result.get("store") or {}
        if store.get("cause"):
            store["cause"] = _in_text(store["cause"], names, replaced)
        return {**result, "errors": errors}

    def _walk(self, value: Any, key: str, replaced: dict[str, str]) -> Any:
        if isinstance(value, dict):
            return {name: self._walk(inner, name, replaced) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._walk(inner, key, replaced) for inner in value]
        change = _CHANGES.get(key)
        if change is None or not isinstance(value, str) or _kept(value):
            return value
        replaced[value] = change(self, value)
        return replaced[value]

    def _digest(self, value: str) -> bytes:
        return hashlib.sha256(self._value + value.encode()).digest()

    def uuid(self, value: str) -> str:
        """A UUID of the same form, whatever stands around it (`GPU-...`)."""
        match = _UUID.search(value)
        if not match:
            return self.word(value)
        new = str(UUID(bytes=self._digest(match.group().lower())[:16]))
        return value[: match.start()] + new + value[match.end() :]

    def word(self, value: str) -> str:
        return self._digest(value).hex()[:12]

    def node(self, value: str) -> str:
        return f"node-{self.word(value)[:8]}"

    def address(self, value: str) -> str:
        """Another address of the same kind; loopback and link-local ones stay, since checks look for them."""
        try:
            old = ipaddress.ip_address(value)
        except ValueError:
            return self.node(value)
        if old.is_loopback or old.is_link_local or old.is_unspecified:
            return value
        digest = self._digest(value)
        if old.version == 4:
            return str(ipaddress.ip_address(bytes([10]) + digest[:3]))
        return str(ipaddress.ip_address(bytes.fromhex("20010db8") + digest[:12]))


_CHANGES = {
    "uuid": Salt.uuid,
    "cluster_uuid": Salt.uuid,
    "serial": Salt.word,
    "chassis_serial": Salt.word,
    "node_id": Salt.node,
    "hostname": Salt.node,
    "resolved_ip": Salt.address,
    "data_ip": Salt.address,
}


def _kept(value: str) -> bool:
    """All zeros and *not observed* say something about the machine and nothing about which one it is."""
    return bool(_EMPTY.match(value)) or not_offered(value)


def _in_text(text: str, names: list[str], replaced: dict[str, str]) -> str:
    for old in names:
        text = text.replace(old, replaced[old])
    return text

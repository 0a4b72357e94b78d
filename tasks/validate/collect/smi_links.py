"""NVLinks and paths between GPUs from `nvidia-smi nvlink -s` and `nvidia-smi topo`: not part of the XML."""

from __future__ import annotations

import re
from typing import Any

from tasks.validate.collect.findings import Findings

LINKS_SOURCE = "nvidia-smi nvlink -s"
TOPOLOGY_SOURCE = "nvidia-smi topo -m"
_GPU = re.compile(r"^GPU (\d+): .*?(?:\(UUID: (\S+?)\))?\s*$")
_LINK = re.compile(r"^\s*Link (\d+):\s*(.+?)\s*$")
_SPEED = re.compile(r"^(\d+(?:\.\d+)?) GB/s$")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_P2P_WORDS = {
    "OK": "ok",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by a registry key",
    "NS": "not supported",
    "U": "unknown",
}


def parse_links(text: str) -> Findings:
    """Links of every GPU. A speed says that the link is active; it is printed in GB/s and kept in MB/s."""
    found = Findings()
    gpus: list[dict[str, Any]] = []
    for line in text.splitlines():
        head, link = _GPU.match(line), _LINK.match(line)
        if head:
            gpus.append({"index": int(head.group(1)), "uuid": head.group(2), "nvlinks": []})
        elif link and gpus:
            gpus[-1]["nvlinks"].append(_link(int(link.group(1)), link.group(2)))
    if gpus:
        found.facts["gpus"] = gpus
        found.sources["gpus"] = LINKS_SOURCE
    return found


def _link(number: int, word: str) -> dict[str, Any]:
    speed = _SPEED.match(word)
    if speed:
        return {"link": number, "state": "active", "speed_mb_s": int(float(speed.group(1)) * 1000)}
    return {"link": number, "state": word.strip("<>").lower()}


def parse_topology(paths: str, p2p: str) -> Findings:
    """Paths between GPUs (`topo -m`) with peer access over NVLink (`topo -p2p n`), in both directions."""
    found = Findings()
    routes, access = _matrix(paths), _matrix(p2p)
    peers = [
        {
            "from_gpu": one,
            "to_gpu": other,
            "path": routes.get((one, other)),
            "nvlink_p2p": _P2P_WORDS.get(access.get((one, other), ""), access.get((one, other))),
        }
        for one, other in sorted(routes.keys() | access.keys())
        if one != other
    ]
    if peers:
        found.facts["gpu_peers"] = peers
        found.sources["gpu_peers"] = TOPOLOGY_SOURCE
    return found


def _matrix(text: str) -> dict[tuple[int, int], str]:
    """Cells between GPUs; NICs and the affinity columns behind them are left out."""
    rows = [_ESCAPE.sub("", line).split() for line in text.splitlines()]
    head = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), [])
    columns = [
        (place, int(name[3:])) for place, name in enumerate(head, start=1) if re.fullmatch(r"GPU\d+", name)
    ]
    cells = {}
    for row in rows:
        name = re.fullmatch(r"GPU(\d+)", row[0]) if row else None
        if name and row is not head and "X" in row:
            cells.update({(int(name[1]), other): row[place] for place, other in columns if place < len(row)})
    return cells

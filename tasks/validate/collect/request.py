"""What a probe is asked for, and below which folder it reads. Only the standard library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tasks.processes.nodes import NodeRole

GPU_DEADLINE_S = 20.0
"""Without persistence mode the driver initialises every GPU anew: seconds each on a large node."""
DEADLINE_S = 8.0


@dataclass(frozen=True)
class ProbeRequest:
    """One node's probe.

    Args:
        node_id: Name of the node in reports; empty takes the host's own.
        role: `serve`, `train` or `serve+train`.
        gpus: Ask about GPUs, fabric, IMEX and Xids.
        master: `host:port` of the store's master, to be tried; empty leaves it out.
        data_ip: Address that this node will give to its peers; empty finds it out.
        weights_path: Folder of the target's weights; empty leaves it out.
        run_root: Folder of all runs, whose disk is measured; empty leaves the disk out.
        run_folder: Folder of this run; empty leaves it out.
        ports: Field of the profile -> host and port, to be tried.
        root: Folder that stands for `/`: all files are read below it.
        gpu_deadline_s: For NVML and for each call of `nvidia-smi`, seconds.
        deadline_s: For every other collector, seconds.
    """

    node_id: str = ""
    role: NodeRole = "serve+train"
    gpus: bool = True
    master: str = ""
    data_ip: str = ""
    weights_path: str = ""
    run_root: str = ""
    run_folder: str = ""
    ports: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    root: str = "/"
    gpu_deadline_s: float = GPU_DEADLINE_S
    deadline_s: float = DEADLINE_S

    def path(self, absolute: str) -> Path:
        """An absolute path of the node, below `root`."""
        return Path(self.root) / absolute.lstrip("/")

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ProbeRequest:
        """Raises ValueError if the text is not what `to_json` wrote."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a probe's request: {error}") from error

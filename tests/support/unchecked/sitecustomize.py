"""Takes the check of the captures out of the trainer, so that a control can see what bad captures teach.

Python imports `sitecustomize` at start-up: `PYTHONPATH` must name this folder. Only the trainer is touched.
"""

from __future__ import annotations

import sys

if "tasks.train.run" in sys.orig_argv:
    from tasks.train import explained

    def _accept(*_: object) -> str:
        return ""

    explained.check_explained = _accept

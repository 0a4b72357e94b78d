"""Lets Triton kernels run in Triton's interpreter where there is no GPU.

Python imports `sitecustomize` at start-up, so a server whose PYTHONPATH names this folder, and every
process it spawns, registers a Triton backend called `cpu` before vLLM looks for one. vLLM only looks
whether that name exists; with TRITON_INTERPRET=1 no backend ever compiles anything.
"""

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    try:
        from triton.backends import backends
    except ImportError:
        backends = {}  # not a process that uses Triton
    else:

        class _Driver:
            @staticmethod
            def is_active() -> bool:
                return True

        class _Interpreter:
            compiler = None
            driver = _Driver

        backends.setdefault("cpu", _Interpreter)  # type: ignore[arg-type]

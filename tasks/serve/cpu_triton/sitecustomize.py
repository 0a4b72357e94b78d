"""Lets Triton kernels run in Triton's interpreter where there is no GPU; mends a kernel of the CPU engine.

Python imports `sitecustomize` at start-up, so a server whose PYTHONPATH names this folder, and every
process it spawns, registers a Triton backend called `cpu` before vLLM looks for one. vLLM only looks
whether that name exists; with TRITON_INTERPRET=1 no backend ever compiles anything.

vLLM 0.32 norms the context keys of all draft layers in one call, with one row of weights for each layer.
Its CUDA kernel picks the row by layer; its CPU kernel takes the first row for every layer, so a draft of
two or more layers proposes other tokens on CPU than on a GPU. Here each layer is normed by itself.
"""

import contextlib
import importlib.util
import os
import sys
from typing import Any

_MODULE = "vllm.model_executor.models.qwen3_dflash"


def _register_backend() -> None:
    try:
        from triton.backends import backends
    except ImportError:
        return  # not a process that uses Triton

    class _Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    class _Interpreter:
        compiler = None
        driver = _Driver

    backends.setdefault("cpu", _Interpreter)  # type: ignore[arg-type]


def _skip_overflow_checks() -> None:
    """Leave out a check that repeats integer operations in 64 bits: a quarter of the interpreter's time."""
    with contextlib.suppress(ImportError, AttributeError):
        from triton.runtime.interpreter import interpreter_builder

        object.__setattr__(interpreter_builder.options, "sanitize_overflow", False)


def _mend(module: Any) -> None:
    """Norm `[layers, tokens, heads, width]` keys of the context layer by layer."""

    def normalize_context_k(self: Any, all_k: Any) -> Any:
        normed = module.torch.empty_like(all_k)
        for layer, weight in enumerate(self._k_norm_weights):
            module.ops.rms_norm(normed[layer], all_k[layer], weight, self._rms_norm_eps)
        return normed

    module.DFlashQwen3Model._normalize_context_k = normalize_context_k


class _Mending:
    """An import hook that mends the module once it has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_mend(module: Any) -> None:
            execute(module)
            _mend(module)

        spec.loader.exec_module = execute_and_mend  # type: ignore[method-assign]
        return spec


if os.environ.get("TRITON_INTERPRET") == "1":
    _register_backend()
    _skip_overflow_checks()
    sys.meta_path.insert(0, _Mending())  # type: ignore[arg-type]

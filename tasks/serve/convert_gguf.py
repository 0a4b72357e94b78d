"""Converts one GGUF file into a folder in Hugging Face format. A program: it needs torch.

    python -m tasks.serve.convert_gguf FILE.gguf FOLDER

`FOLDER` must not exist; it appears complete or not at all. The weights are dequantized to bfloat16.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

# Keys that say something about the converting machine or the GGUF file, not about the model.
_JUNK = {
    "config.json": ("_name_or_path", "_model_name_or_path"),
    "generation_config.json": ("_from_model_config", "output_attentions", "output_hidden_states"),
    "tokenizer_config.json": ("is_local", "local_files_only", "name_or_path"),
}
_PR_SET_PDEATHSIG = 1


def convert(file: Path, folder: Path) -> None:
    """Write config, weights (`model.safetensors`, bfloat16), tokenizer and chat template to `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    partial = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        source, name = str(file.parent), file.name
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(gguf_file=name, dequantize=True),
        )
        model.save_pretrained(partial)
        AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(partial)
        clean(partial)
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove keys that do not describe the model, and give the tokenizer its real length limit."""
    for name, keys in _JUNK.items():
        path = folder / name
        if not path.exists():
            continue
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for key in keys:
            content.pop(key, None)
        if name == "tokenizer_config.json":
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            content["model_max_length"] = config["max_position_embeddings"]
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m tasks.serve.convert_gguf FILE.gguf FOLDER")
    if sys.platform == "linux":
        # Ended by the kernel if the program that asked for the conversion dies.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()

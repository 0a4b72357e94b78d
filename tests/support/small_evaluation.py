"""A whole evaluation of little: two captured answers of the laptop's target, and an untrained draft."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.load import load_profile
from profiles.schema import Profile
from tasks.evaluate.core import evaluate
from tasks.evaluate.models import EvaluationReport
from tasks.processes.launcher import LocalLauncher
from tasks.report.progress import SilentProgress
from tasks.run_folder import RunFolder, create_run
from tasks.serve.target_folder import resolve_target
from tasks.stream.log import LogWriter, index_digest
from tasks.stream.models import CaptureCounters, CaptureManifest
from tasks.train.core import target_name
from tasks.train.models import DraftCheckpoint

QUESTIONS = {"qa": "What is the capital of France?", "writing": "Write one line about rain."}
TOKENS = 24


def small_evaluation(**live: Any) -> Profile:
    """The laptop's profile for these two prompts."""
    settings = {"per_domain": 1, "max_new_tokens": 12, "concurrency": 2, **live}
    return load_profile("laptop", {"evaluate": {"replay_max_new_tokens": TOKENS, "live": settings}}).profile


def evaluate_little(profile: Profile, folder: Path) -> tuple[EvaluationReport, RunFolder]:
    """Capture, export a draft, evaluate it with itself as the incumbent."""
    target = resolve_target(profile)
    captures = capture(profile, target, folder / "log")
    draft = untrained(profile, target, folder / "draft")
    run = create_run(folder / "runs", "run-1", profile)
    report = evaluate(
        profile,
        run,
        folder / "stage",
        captures,
        folder / "log",
        draft,
        folder / "draft",
        target,
        LocalLauncher(),
        SilentProgress(),
        incumbent=("v1", folder / "draft"),
    )
    return report, run


def capture(profile: Profile, target: Path, folder: Path) -> CaptureManifest:
    """Greedy answers and hidden states of the target by Transformers, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    writer = LogWriter(folder)
    layers = profile.target.aux_layer_ids
    for i, (domain, text) in enumerate(QUESTIONS.items()):
        chat = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        with torch.inference_mode():
            ids = model.generate(prompt, max_new_tokens=TOKENS, do_sample=False)
            states = model(ids[:, :-1], output_hidden_states=True).hidden_states
        # Replay reads the auxiliary layers only; the last place just has to be there.
        stacked = torch.stack([states[layer][0] for layer in (*layers, layers[-1])], dim=1)
        length = prompt.shape[1]
        writer.append(
            i=i,
            prompt_id=f"{domain}-0",
            domain=domain,
            split="evaluate",
            prompt_tokens=length,
            answer_ids=tuple(ids[0, length:].tolist()),
            finish_reason="length",
            hidden_states=stacked.clone(),
            token_ids=ids[0, :-1].clone(),
        )
    writer.close()
    entries = list(writer.entries.values())
    return CaptureManifest(
        log="log",
        digest=index_digest(entries),
        target="target",
        layer_ids=(*layers, model.config.num_hidden_layers),
        hidden_size=model.config.hidden_size,
        dtype="float32",
        samples=len(entries),
        tokens=sum(entry.tokens for entry in entries),
        trainable_tokens=1,
        distinct_tokens=1,
        bytes=sum(entry.bytes for entry in entries),
        splits={"evaluate": len(entries)},
        counters=CaptureCounters(),
    )


def untrained(profile: Profile, target: Path, folder: Path) -> DraftCheckpoint:
    """An untrained draft, exported by the trainer's own code."""
    import torch

    from tasks.train import adapter
    from tasks.train.export import ExportedFor, export_draft
    from tasks.train.vocabulary import DraftVocabulary

    ids = torch.arange(512)
    t2d = torch.zeros(adapter.target_text_config(target).vocab_size, dtype=torch.bool)
    t2d[ids] = True
    vocabulary = DraftVocabulary(t2d, ids - torch.arange(512), 512)
    model = adapter.build_draft(target, profile.train.draft, profile.target.aux_layer_ids, vocabulary, 0)
    files = export_draft(
        model,
        adapter.trained_state(model),
        folder,
        ExportedFor(target_name(profile), None, target),
        torch.float32,
    )
    return DraftCheckpoint(
        path="draft",
        files=files,
        step=0,
        steps=0,
        epochs=0,
        parameters=1,
        trained_parameters=1,
        draft_vocab_size=512,
        block_size=profile.train.draft.block_size,
        held_out_eal=1.0,
        metrics={},
        config={},
    )

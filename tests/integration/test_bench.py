"""`make bench` with tiny sizes: rows have the agreed fields, and both sides compute the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

BENCH = Path(__file__).resolve().parents[1] / "bench"
SYNTHETIC = """
import sys
sys.path.insert(0, sys.argv[1])
import run
tiny = run.Size(64, 32, 16, 2, 3, 2, 4, 8, 6, 1)
run.main(["--stages", "train", "evaluate", "--rows", "forward", "--json", sys.argv[2]], tiny)
"""
TRAIN = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run, train_rows, train_world
tiny = train_world.TrainSize(
    vocab=256, hidden=32, heads=2, kv_heads=1, aux_layers=2, documents=24, held_out=4, prompt_tokens=8,
    answer_tokens=24, losses=3, steps=3, warm=1, repetitions=1,
    overrides=(("batch_tokens", 96), ("anchors", 16), ("draft", {
        "num_layers": 1, "block_size": 4, "markov_rank": 8, "vocab_size": 64, "intermediate_size": 48,
    })),
)
whole = run.measure_train
run.measure_train = lambda names, folder: whole(names, folder, tiny)
run.main(["--stages", "train", "--rows", *sys.argv[3:], "--json", sys.argv[2]])
"""
MEMORY = """
import sys
sys.path.insert(0, sys.argv[1])
import client_memory, run
whole = client_memory.rows
client_memory.rows = lambda folder: whole(folder, client_memory.MemorySize(12, 24, 4, 4))
run.main(["--stages", "stream", "--rows", "client_memory", "--json", sys.argv[2]])
"""
ENDLESS = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import endless
from transformers import AutoTokenizer
folder = Path(sys.argv[2]).parent
target = endless.endless_target(folder)
tokenizer = AutoTokenizer.from_pretrained(target)
turn = [{"role": "user", "content": "Hello."}]
text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
config = [json.loads((target / name).read_text()) for name in ("config.json", "generation_config.json")]
over = endless.overrides(folder, target, (8, 64), 64)
profile = endless.load_profile("laptop", over).profile
prompts = endless.load_prompts(profile).prompts
Path(sys.argv[2]).write_text(json.dumps({
    "eos": [tokenizer.eos_token_id, *(one["eos_token_id"] for one in config)],
    "template_ends_turns": "<|im_end|>" in text,
    "weights": [path.is_symlink() for path in target.glob("*.safetensors")],
    "splits": sorted(prompt.split for prompt in prompts),
    "longest": profile.target.max_model_len,
}))
"""
LOG = """
import sys
sys.path.insert(0, sys.argv[1])
import log_rows, run
whole = log_rows.log_rows
log_rows.log_rows = lambda folder: whole(folder, 1, ((3, 1), (2, 2)))
run.main(["--stages", "stream", "--rows", "log", "--json", sys.argv[2]])
"""
UPSTREAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import servers, upstream
from speculators.train.config import TrainConfig
folder = Path(sys.argv[2]).parent
with servers.workplace(folder, "flags", {}) as place:
    argv = upstream.train_argv(place, folder, "http://127.0.0.1:1/v1", "127.0.0.1:2", 0.9, 500)
words = TrainConfig.resolve(argv[argv.index("train") + 1:]).flatten()
ours = place.profile.train
wanted = {
    "speculator_type": "dspark", "block_size": ours.draft.block_size, "max_anchors": ours.anchors,
    "markov_rank": ours.draft.markov_rank, "total_seq_len": ours.batch_tokens, "epochs": ours.epochs,
    "optimizer": ours.optimizer, "muon_lr": ours.muon_lr, "lr": ours.lr, "draft_vocab_size": 500,
    "target_layer_ids": list(place.profile.target.aux_layer_ids), "hidden_states_backend": "mooncake",
    "mooncake_master": "127.0.0.1:2", "log_freq": 1, "num_workers": 0, "on_missing": "generate",
}
Path(sys.argv[2]).write_text(json.dumps({k: [words.get(k), v] for k, v in wanted.items()}))
"""


def measured(program: str, out: Path, *words: str) -> tuple[list[dict[str, object]], str]:
    """What the program wrote to `out`, and what it printed."""
    command = [sys.executable, "-c", program, str(BENCH), str(out), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text(encoding="utf-8")), done.stdout


def check_fields(rows: list[dict[str, object]], printed: str) -> None:
    for row in rows:
        assert set(row) == {"stage", "name", "value", "baseline", "ratio", "goal", "unit", "conditions"}
        value, baseline, ratio = (float(str(row[name])) for name in ("value", "baseline", "ratio"))
        assert abs(ratio - value / baseline) < 0.01 * ratio + 0.001
        assert str(row["name"]) in printed


def test_rows_have_the_agreed_fields(tmp_path: Path) -> None:
    rows, printed = measured(SYNTHETIC, tmp_path / "rows.json")
    assert [row["stage"] for row in rows] == ["train", "evaluate"]
    check_fields(rows, printed)


@pytest.mark.timeout(500)
def test_a_step_has_upstreams_losses_and_both_are_timed(tmp_path: Path) -> None:
    """Upstream's own trainer runs in its own process; a loss that differs ends the row with an error."""
    rows, printed = measured(TRAIN, tmp_path / "rows.json", "step")
    assert [row["name"] for row in rows] == ["step", "step, matrix products alone"]
    check_fields(rows, printed)
    assert "losses of 3 steps in float32 at most" in str(rows[0]["conditions"])


@pytest.mark.timeout(500)
def test_costs_beside_the_step_are_measured(tmp_path: Path) -> None:
    rows, printed = measured(TRAIN, tmp_path / "rows.json", "data_wait", "checkpoint", "cost")
    names = ["data_wait", "checkpoint", "cost against tokens", "cost against anchors", "cost against draft"]
    assert [str(row["name"])[: len(name)] for row, name in zip(rows, names, strict=True)] == names
    check_fields([row for row in rows if row["name"] != "data_wait"], printed)


@pytest.mark.timeout(500)
def test_memory_of_a_real_capture_client_is_read(tmp_path: Path) -> None:
    """The process, its store and its log are real; only the target is the program of the tests."""
    rows, printed = measured(MEMORY, tmp_path / "rows.json")
    check_fields(rows, printed)
    growth, peak = rows
    assert float(str(growth["value"])) > 50 and float(str(peak["value"])) >= float(str(growth["value"]))
    assert float(str(peak["ratio"])) <= 1, "the client needs more than its byte budget and 256 MiB"


@pytest.mark.timeout(500)
def test_the_products_reader_takes_real_objects_to_a_real_log(tmp_path: Path) -> None:
    rows, printed = measured(LOG, tmp_path / "rows.json")
    check_fields(rows, printed)
    alone, together = rows[::2], rows[1::2]
    assert [row["name"] for row in alone] == ["log, 1 MiB", "log, 2 MiB"]
    assert [row["name"] for row in together] == [f"{row['name']}, both at once" for row in alone]
    assert all("get 2 threads" in str(row["conditions"]) for row in alone)
    assert [row["value"] for row in together] == [row["value"] for row in alone]


def test_upstreams_command_line_takes_our_values(tmp_path: Path) -> None:
    found, _ = measured(UPSTREAM, tmp_path / "found.json")
    assert isinstance(found, dict)
    assert {name: pair[0] for name, pair in found.items()} == {name: pair[1] for name, pair in found.items()}


def test_the_rate_rows_target_never_ends_an_answer(tmp_path: Path) -> None:
    found, _ = measured(ENDLESS, tmp_path / "found.json")
    assert isinstance(found, dict)
    assert len(set(found["eos"])) == 1 and found["eos"][0] not in (0, 1, 2)
    assert found["template_ends_turns"] and found["weights"] == [True]
    assert found["splits"] == ["evaluate", *["held_out"] * 4, *["train"] * 4] and found["longest"] == 576

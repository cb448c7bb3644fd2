"""Fine-tune the ``block`` drafter by six objectives from one start: ``python data/train_demo.py``.

It needs what ``python data/build_demo.py --until text`` keeps (the target's own answers to 2400 prompts and its hidden
states along them, 15 minutes on two cores) in the same ``--work``. Every stage is kept there, half an hour on two cores
together; a second run goes on.

1. ``start``: heads from random initialisation, briefly trained on plain cross-entropy, the start of all arms;
2. ``rate``: every arm with seed 0 at each learning rate; validation prompts say which rate is the arm's own;
3. ``runs``: every arm at its rate with the other seeds; a seed is an order of the rollouts, the same for all arms;
4. ``times``: CPU seconds of a step, all objectives in turn on the same batches;
5. ``data/training.parquet``: a row for each arm, seed, evaluated step and prompt, with its expected rounds;
   ``data/training_times.csv``: a row for each objective and batch.

All arms take the same number of steps over the same rollouts from all starts, with the same optimiser and schedule;
only the objective, with its paper's defaults and reduction, and the rate differ. EDR is in the cost form, with the stop
token.

The drafter knows 8192 token ids, the target 49 152. Objectives see 8193 columns: the last stands for all other ids. The
target's probability of it is what the 8192 lack; the draft's is ``exp(-20)``, constant. As the draft gives none of
these ids anything, ``sum (p - q)_+`` and ``sum min(p, q)`` over all ids are those over the columns, to 2e-9; a
divergence, which would be infinite, stays finite, with the gradient of its part within the 8192. A rollout's token
among the others is a draft that is always rejected, of a cross-entropy that is constant. Evaluation takes q = 0 there.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import polars as pl
import torch
from block_drafter import WEIGHTS, BlockHeads
from build_demo import SHARD, TRAINING_PROMPTS
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from train_block import DEPTH, MATCH, RANK, TRUNK, Text, load

import markov_spec as ms
from markov_spec.objectives import OBJECTIVES, ObjectiveResult

DATA = Path(__file__).parent
RESULTS, TIMES = DATA / "training.parquet", DATA / "training_times.csv"
ARMS = ("dflash-decay", "d-pace", "auf", "lk-lambda", "e2e-tv", "edr")
SEEDS, RATES = (0, 1, 2), (3e-4, 1e-3, 3e-3)
STEPS, ROLLOUTS, EVALUATED = 80, 4, (20, 40, 80)
START_STEPS, START_RATE = 100, 3e-3
VALIDATION, HELD_OUT = 1, 2  # shards, the last ones
TIMED = 12
STOP, ELSEWHERE = 2, -20.0


@dataclass(frozen=True)
class Demo:
    """What all runs share."""

    embeddings: Tensor
    head: Tensor
    place: Tensor  # column of each token id
    stop: int
    texts: dict[str, Text]
    prompts: dict[str, list[dict[str, str]]]


@cache
def demo(work: Path) -> Demo:
    """Read features, embeddings and the drafter's ids; normalise the evaluated parts in float32, once."""
    from training import training_prompts

    paths, wanted = sorted(work.glob("features-*.safetensors")), TRAINING_PROMPTS // SHARD
    if len(paths) != wanted:
        made_by = f"python data/build_demo.py --until text --work {work}"
        sys.exit(f"{work}: found features of {len(paths)} shards; allowed: {wanted}, which {made_by} makes")
    with safe_open(work / "smollm2/model.safetensors", "pt") as file:
        embeddings = file.get_tensor("model.embed_tokens.weight").float()
    ids = load_file(WEIGHTS)["ids"].long()
    place = torch.full((len(embeddings),), len(ids))
    place[ids] = torch.arange(len(ids))
    cut = {"train": slice(-VALIDATION - HELD_OUT), "validation": slice(-VALIDATION - HELD_OUT, -HELD_OUT)}
    cut["held-out"] = slice(-HELD_OUT, None)
    texts = {name: load(paths[part]) for name, part in cut.items()}
    rows, prompts = training_prompts(TRAINING_PROMPTS, seed=1), {}
    for name in ("validation", "held-out"):
        log_z = _normalisers(work / f"train/{name}.safetensors", texts[name], embeddings)
        texts[name] = replace(texts[name], log_z=log_z)
        prompts[name] = [row for path in paths[cut[name]] for row in _in_order(path, rows)]
    return Demo(embeddings, embeddings[ids], place, int(place[STOP]), texts, prompts)


def _in_order(path: Path, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    # Features stand by length.
    shard = int(path.stem[-2:])
    texts = json.loads(path.with_name(f"text-{shard:02d}.json").read_text())
    lengths = [len(text["prompt"]) + len(text["tokens"]) for text in texts]
    return [rows[shard * SHARD + i] for i in sorted(range(len(texts)), key=lengths.__getitem__)]


def _normalisers(path: Path, text: Text, embeddings: Tensor) -> Tensor:
    if not path.exists():
        log_z = text.log_z.clone()
        for which in range(len(text.firsts)):
            rows = slice(int(text.offsets[which] + text.firsts[which]), int(text.offsets[which + 1]))
            log_z[rows] = (text.states[rows].float() @ embeddings.T).logsumexp(-1)
        save_file({"log_z": log_z}, path)
    return load_file(path)["log_z"]


def rollout(heads: BlockHeads, shared: Demo, text: Text, which: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draft from all starts of one rollout.

    Gives what the output head reads ``(T, K, H)``, the target's states ``(T, H)`` and normalisers, and the tokens.
    """
    rows, first = slice(int(text.offsets[which]), int(text.offsets[which + 1])), int(text.firsts[which])
    states, tokens = text.states[rows].float(), text.tokens[rows].long()
    drafted = heads(states, shared.embeddings[tokens], torch.arange(first, len(states) - 1))
    return drafted.transpose(0, 1), states[first + 1 :], text.log_z[rows][first + 1 :], tokens[first + 1 :]


def batch(heads: BlockHeads, shared: Demo, chosen: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draft logits, target logits, tokens and lengths of some rollouts, padded; matrix products in bfloat16."""
    narrow, text = shared.head.bfloat16(), shared.texts["train"]
    drafts, states, normalisers, tokens = zip(*(rollout(heads, shared, text, i) for i in chosen), strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    drafted = torch.log_softmax((pad(drafts, True).bfloat16() @ narrow.T).float(), -1)
    draft = torch.cat([drafted, torch.full_like(drafted[..., :1], ELSEWHERE)], -1)
    known = (pad(states, True).bfloat16() @ narrow.T).float() - pad(normalisers, True)[..., None]
    elsewhere = (1 - known.exp().sum(-1, keepdim=True)).clamp_min(1e-9).log()
    target, lengths = torch.cat([known, elsewhere], -1), torch.tensor(list(map(len, tokens)))
    return draft, target, shared.place[pad(tokens, True)], lengths


def objective(name: str, shared: Demo, given: tuple[Tensor, Tensor, Tensor, Tensor]) -> ObjectiveResult:
    """Compute an objective of a batch."""
    options = {"form": "cost", "stop_ids": (shared.stop,)} if name == "edr" else {}
    return OBJECTIVES[name].function(*given, **options)


def train(heads: BlockHeads, shared: Demo, name: str, rate: float, order: Tensor) -> Iterator[tuple[int, float]]:
    """Take a step for each row of ``order (steps, rollouts)``; yield its number, from 1, and its loss."""
    optimizer = torch.optim.AdamW(heads.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.01)
    for step, chosen in enumerate(order.tolist()):
        share = step / len(order)
        optimizer.param_groups[0]["lr"] = rate * min(1, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * share))
        result = objective(name, shared, batch(heads, shared, chosen))
        optimizer.zero_grad()
        result.loss.backward()
        optimizer.step()
        yield step + 1, float(result.loss.detach())


@torch.inference_mode()
def evaluate(heads: BlockHeads, shared: Demo, part: str) -> pl.DataFrame:
    """Compute the expected rounds of each prompt of a part: exact, of drafts in bfloat16 at temperature 1."""
    log_p, log_q, lengths, text, narrow = [], [], [], shared.texts[part], shared.head.bfloat16()
    for which in range(len(text.firsts)):
        drafted, states, log_z, tokens = rollout(heads, shared, text, which)
        size = len(tokens)
        at = torch.arange(size)[:, None] + torch.arange(DEPTH)
        place = shared.place[tokens[at.clamp(max=size - 1)]]
        cells = torch.full((size, DEPTH), -torch.inf)
        inside = (at < size) & (place < len(shared.head))
        logits = (drafted[inside].bfloat16() @ narrow.T).float()
        cells[inside] = torch.log_softmax(logits, -1).gather(-1, place[inside][:, None])[:, 0]
        log_q.append(cells)
        log_p.append(((states * shared.embeddings[tokens]).sum(-1) - log_z).clamp(max=0))
        lengths.append(size)
    indptr = torch.tensor([0, *lengths]).cumsum(0).numpy()
    law = ms.round_law(torch.cat(log_p).numpy(), torch.cat(log_q).numpy(), indptr, rule="rejection")
    prompts = shared.prompts[part]
    return pl.DataFrame(
        {
            "split": part,
            "prompt": [row["id"] for row in prompts],
            "benchmark": [row["benchmark"] for row in prompts],
            "tokens": lengths,
            "rounds": ms.solve(law).expected,
        }
    )


def _order(shared: Demo, seed: int, steps: int) -> Tensor:
    order = torch.randperm(len(shared.texts["train"].firsts), generator=torch.Generator().manual_seed(seed))
    return order[: steps * ROLLOUTS].view(steps, ROLLOUTS)


def _heads(shared: Demo, weights: Path | None = None) -> BlockHeads:
    torch.manual_seed(0)
    heads = BlockHeads(shared.embeddings.shape[1], DEPTH, TRUNK, RANK, MATCH)
    if weights:
        heads.load_state_dict(load_file(weights))
    return heads


def build_start(folder: Path, shared: Demo) -> None:
    """Train the common start, and evaluate it, once."""
    path, reached = folder / "start.safetensors", folder / "start.parquet"
    if not path.exists():
        heads = _heads(shared)
        # No arm has this order.
        order = _order(shared, max(SEEDS) + 1, START_STEPS)
        for step, loss in train(heads, shared, "cross-entropy", START_RATE, order):
            if step % 20 == 0:
                _say(f"start: step {step} of {len(order)}, loss {loss:.3f}")
        save_file({name: value.detach() for name, value in heads.state_dict().items()}, path)
    if not reached.exists():
        _whole(_labelled(_heads(shared, path), shared, ("held-out", "validation"), arm="start"), reached)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _whole(frame: pl.DataFrame, path: Path) -> None:
    part = path.with_suffix(".part")
    frame.write_parquet(part)
    part.rename(path)


def _labelled(heads: BlockHeads, shared: Demo, parts: Sequence[str], **labels: object) -> pl.DataFrame:
    """Evaluate parts, and say what of."""
    frame = pl.concat([evaluate(heads, shared, part) for part in parts])
    row = {"arm": "", "rate": None, "seed": 0, "step": 0, "loss": None} | labels
    types = {"arm": pl.String, "rate": pl.Float64, "seed": pl.Int64, "step": pl.Int64, "loss": pl.Float64}
    return frame.select(*(pl.lit(row[name], dtype=types[name]).alias(name) for name in types), *frame.columns)


def _path(folder: Path, name: str, rate: float, seed: int) -> Path:
    return folder / f"{name}-{rate:g}-{seed}.parquet"


def run(job: tuple[Path, str, float, int]) -> None:
    """Train one arm with one seed at one rate, and keep what it reached."""
    work, name, rate, seed = job
    torch.set_num_threads(1)
    shared, found, losses = demo(work), [], []
    heads = _heads(shared, work / "train/start.safetensors")
    for step, loss in train(heads, shared, name, rate, _order(shared, seed, STEPS)):
        losses.append(loss)
        if step in EVALUATED:
            parts = ("held-out", "validation") if step == STEPS else ("held-out",)
            mean, losses = statistics.fmean(losses), []
            found.append(_labelled(heads, shared, parts, arm=name, rate=rate, seed=seed, step=step, loss=mean))
            length = _length(found[-1].filter(split="held-out"))
            _say(f"{name} at {rate:g}, seed {seed}: step {step}, loss {mean:.3f}, held-out length {length:.4f}")
    _whole(pl.concat(found), _path(work / "train", name, rate, seed))


def _length(frame: pl.DataFrame) -> float:
    return float(frame["tokens"].sum() / frame["rounds"].sum())


def run_all(work: Path, jobs: Sequence[tuple[str, float, int]], processes: int) -> None:
    """Do the runs that are not there yet."""
    todo = [(work, *job) for job in jobs if not _path(work / "train", *job).exists()]
    if todo:
        with get_context("spawn").Pool(processes) as pool:
            for done, _ in enumerate(pool.imap_unordered(run, todo), 1):
                _say(f"runs: {done} of {len(todo)}")


def own_rates(folder: Path) -> dict[str, float]:
    """Give the rate of each arm with the largest length on validation prompts."""

    def reached(name: str, rate: float) -> float:
        return _length(pl.read_parquet(_path(folder, name, rate, SEEDS[0])).filter(split="validation"))

    return {name: max(RATES, key=lambda rate: reached(name, rate)) for name in ARMS}


def collect(folder: Path, rates: dict[str, float]) -> None:
    """Write what is committed: held-out prompts of the arms at their rates, validation prompts of all runs; times."""
    tried = [(name, rate, SEEDS[0]) for name in ARMS for rate in RATES]
    kept = [(name, rate, seed) for name, rate in rates.items() for seed in SEEDS]
    frames = [pl.read_parquet(folder / "start.parquet")]
    for job in dict.fromkeys(kept + tried):
        frame = pl.read_parquet(_path(folder, *job))
        frames.append(frame if job in kept else frame.filter(split="validation"))
    pl.concat(frames).write_parquet(RESULTS, compression="zstd")
    TIMES.write_text((folder / "times.csv").read_text())


def measure(folder: Path, shared: Demo) -> None:
    """Time whole steps, and in them the objective and its gradient on given logits; other load slows all alike."""
    heads, rows = _heads(shared, folder / "start.safetensors"), []
    optimizer = torch.optim.AdamW(heads.parameters(), lr=0.0)
    order = _order(shared, SEEDS[0], TIMED + 1)
    for number, chosen in enumerate(order.tolist()):
        for name in ("cross-entropy", *ARMS):
            begin = time.process_time()
            draft, *others = batch(heads, shared, chosen)
            given = draft.detach().requires_grad_()
            read = time.process_time()
            (slope,) = torch.autograd.grad(objective(name, shared, (given, *others)).loss, given)
            spent = time.process_time() - read
            optimizer.zero_grad()
            draft.backward(slope)
            optimizer.step()
            row = {"objective": name, "batch": number, "step": time.process_time() - begin, "loss": spent}
            rows += [row] * (number > 0)  # the first is to warm up
        _say(f"times: batch {number} of {TIMED}")
    pl.DataFrame(rows).write_csv(folder / "times.csv", float_precision=4)


def main() -> None:
    """Run the stages in order."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/demo"), help="the folder of build_demo.py")
    parser.add_argument("--processes", type=int, default=2, help="runs at a time, of one thread each")
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = given.work / "train"
    folder.mkdir(parents=True, exist_ok=True)
    shared = demo(given.work)
    build_start(folder, shared)
    run_all(given.work, [(name, rate, SEEDS[0]) for rate in RATES for name in ARMS], given.processes)
    rates = own_rates(folder)
    run_all(given.work, [(name, rate, seed) for seed in SEEDS for name, rate in rates.items()], given.processes)
    if not (folder / "times.csv").exists():
        measure(folder, shared)
    collect(folder, rates)


if __name__ == "__main__":
    main()

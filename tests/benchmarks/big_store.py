"""Memory, time and bytes read of a store of some gigabytes: ``python tests/benchmarks/big_store.py [GB] [FOLDER]``.

Writes a store of random numbers of about ``GB`` (4 unless told) below ``FOLDER`` by ``StoreWriter``, goes through it by
``Store.batches``, evaluates its drafters and reads one rollout of it, each in a process of its own, and removes it.
Growth is the peak of resident memory, which is told too, less what a store of one batch took there before. Needs
``/proc``, as Linux has it.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import markov_spec as ms

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.store.memory import bytes_read, resident

DEPTH, ROLLOUTS, TOKENS, POSITIONS = 16, 64, 1000, 1 << 17
DISK_BYTES = 95  # of a position, compressed


def write(path, gigabytes):
    rng = np.random.default_rng(0)
    total, first = int(gigabytes * 1e9 / DISK_BYTES), 0
    with ms.StoreWriter(path) as writer:
        for first in range(0, total // TOKENS, ROLLOUTS):
            lengths = rng.integers(TOKENS // 2, TOKENS * 3 // 2, ROLLOUTS)
            rows, ids = int(lengths.sum()), [f"rollout-{i:08}" for i in range(first, first + ROLLOUTS)]
            writer.add_rollouts(
                rollout_ids=ids,
                prompt_ids=ids,
                tokens=rng.integers(0, 150_000, rows, np.int32),
                indptr=np.concatenate([[0], np.cumsum(lengths)]),
                log_p=-rng.random(rows, np.float32),
                prompt_tokens=list(rng.integers(0, 150_000, (ROLLOUTS, 100), np.int32)),
            )
            log_q, rank = -rng.random((rows, DEPTH), np.float32), rng.integers(1, 1000, (rows, DEPTH), np.int32)
            writer.add_drafts(ms.Drafts("block", "block", "rejection", log_q, rank))
            writer.add_drafts(ms.Drafts("small", "autoregressive", "rejection", -rng.random(rows, np.float32)))


def go_through(path):
    store, rows = ms.open_store(path), 0
    for batch in store.batches(POSITIONS):
        drafts = batch.drafter("block"), batch.drafter("small")
        rows += batch.rollouts().tokens.size
        assert {d.log_q.shape[0] for d in drafts} == {batch.index[1][-1]}
    assert rows == store.facts()["tokens"]


def read_one(path):
    store = ms.open_store(path)
    (row,) = store.locate([f"rollout-{len(store) // 2:08}"])
    one = store.batch(row, row + 1)
    assert one.rollouts().tokens.size == len(one.drafter("block").log_q) == len(one.drafter("small").log_q)


def evaluate(path):
    for contender in ("block", "small", "small:K=8,rule=block"):
        ms.evaluate(path, contender)


STEPS = {"write": write, "go_through": go_through, "evaluate": evaluate, "read_one": read_one}


def measure(step, path, gigabytes):
    with tempfile.TemporaryDirectory() as home:  # what the libraries take at first use
        small = Path(home) / "store"
        write(small, ROLLOUTS * TOKENS * DISK_BYTES / 1e9)
        read_one(small)
        if step == "evaluate":
            evaluate(small)
    before, read, begin = resident()[1], bytes_read(), time.perf_counter()
    STEPS[step](Path(path), *([float(gigabytes)] if step == "write" else []))
    seconds = time.perf_counter() - begin
    peak = resident()[1]
    return {"peak_mb": peak, "growth_mb": peak - before, "seconds": seconds, "read_mb": (bytes_read() - read) / 1e6}


def main(gigabytes="4", folder=None):
    with tempfile.TemporaryDirectory(dir=folder) as home:
        path = Path(home) / "store"
        for step in STEPS:
            words = [sys.executable, __file__, "--step", step, str(path), gigabytes]
            told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            print(
                f"{step}: peak {told['peak_mb']:.0f} MB, growth {told['growth_mb']:.1f} MB, {told['seconds']:.2f} s, "
                f"{told['read_mb']:.1f} MB read",
                flush=True,
            )
            if step == "write":
                print(
                    json.dumps({key: ms.open_store(path).facts()[key] for key in ("rollouts", "tokens", "megabytes")})
                )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--step"]:
        print(json.dumps(measure(*sys.argv[2:])))
    else:
        main(*sys.argv[1:])

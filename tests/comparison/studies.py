"""Synthetic studies with clustered prompts whose true figures are known."""

import numpy as np
import polars as pl


def vectors(rounds, *, tokens, prompts=None, **columns):
    """A frame of contenders ``{name: rounds of each rollout}`` on the same rollouts."""
    count = len(tokens)
    ids = [f"r{i:04}" for i in range(count)]
    own = ids if prompts is None else prompts
    parts = [
        pl.DataFrame(
            {"contender": [name] * count, "rollout": ids, "prompt": own, "tokens": tokens, "rounds": list(values)}
            | {column: given[name] if isinstance(given, dict) else given for column, given in columns.items()},
            strict=False,
        )
        for name, values in rounds.items()
    ]
    return pl.concat(parts)


def study(rng, *, prompts, rollouts, lengths=(3.0, 3.15), shared=0.3, own=0.15, noise=0.15, spread=0.4, benchmarks=1):
    """Draw a study, and give the true pooled length of each contender.

    Prompts are easy or hard (``shared``), and each contender likes some (``own``); rollouts vary by ``noise``. All are
    standard deviations of logarithms, as is ``spread`` of the prompts' lengths.
    """
    prompt = np.repeat(np.arange(prompts), rollouts)
    tokens = 1 + rng.poisson(np.exp(rng.normal(np.log(80), spread, prompts))[prompt])
    ease = rng.normal(0, shared, prompts)[prompt]
    names = "abcdefghij"[: len(lengths)]
    rounds = {
        name: tokens / length / np.exp(ease + rng.normal(0, own, prompts)[prompt] + rng.normal(0, noise, prompt.size))
        for name, length in zip(names, lengths, strict=True)
    }
    frame = vectors(
        rounds,
        tokens=tokens,
        prompts=[f"p{g:04}" for g in prompt],
        benchmark=[f"bench {g % benchmarks}" for g in prompt],
    )
    truth = {
        name: length / np.exp((shared**2 + own**2 + noise**2) / 2) for name, length in zip(names, lengths, strict=True)
    }
    return frame, truth

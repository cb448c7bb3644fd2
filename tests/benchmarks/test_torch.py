"""Speed of the recursions on tensors as a share of the loss that they weight, one thread.

``pytest tests/benchmarks/test_torch.py -s`` prints them: one rollout of 512 tokens, K = 8, and cross-entropy on its
512 x 8 rows of 32 000 float32 logits, forward and backward.
"""

import pytest
import torch

from markov_spec.chain._torch import cost_recursions, recursions
from tests.benchmarks.test_engine import ratio, tell

TOKENS, DEPTH, VOCABULARY = 512, 8, 32_000


@pytest.fixture(scope="module")
def cross_entropy():
    torch.set_num_threads(1)
    logits = torch.randn(TOKENS * DEPTH, VOCABULARY, requires_grad=True)
    tokens = torch.randint(VOCABULARY, (TOKENS * DEPTH,))

    def run():
        logits.grad = None
        torch.nn.functional.cross_entropy(logits, tokens).backward()

    return run


@pytest.mark.parametrize("form", ["occupancy and value", "cost form and gradient"])
def test_recursions_against_cross_entropy(form, cross_entropy):
    accept, cost, lengths = torch.rand(1, TOKENS, DEPTH), torch.rand(1, TOKENS, DEPTH), torch.tensor([TOKENS])
    run = {
        "occupancy and value": lambda: recursions(accept, lengths),
        "cost form and gradient": lambda: cost_recursions(accept, cost, lengths),
    }[form]
    share = ratio(run, cross_entropy, rounds=3)
    tell(f"{form}, millionths of cross-entropy", 1e6 * share)
    assert share <= 0.05

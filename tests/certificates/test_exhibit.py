"""Why certificates of a lossy rule bound no rounds: with all drafts certified, literal decoding needs more."""

import numpy as np
import pytest

import markov_spec as ms
from markov_spec.cli import main

V, T, K, SLACK = 3, 8, 3, 0.2
TARGET = np.array([0.5, 0.4, 0.1])  # after its own best tokens, 0 at each place
DRAFTER = np.array([0.44, 0.46, 0.1])  # one nearly equal
ELSEWHERE = np.array([0.04, 0.06, 0.9]), np.array([0.9, 0.05, 0.05])  # after any other token they disagree


def target(prefix):
    return TARGET if not any(prefix) else ELSEWHERE[0]


def drafter(prefix):
    return DRAFTER if not any(prefix) else ELSEWHERE[1]


def decoded(accepts):
    """Greedy decoding, literally: drafts of the drafter's best tokens, kept while the target's rule accepts them."""
    tokens, rounds = (), 0
    while len(tokens) < T:
        rounds += 1
        for _ in range(K):
            draft = int(drafter(tokens).argmax())
            if not accepts(target(tokens), draft):
                break
            tokens += (draft,)
        tokens += (int(target(tokens).argmax()),)
    return tokens[:T], rounds


@pytest.fixture
def store(tmp_path):
    """The target's greedy rollout, and what the drafter says along it."""
    p, q = np.tile(TARGET, (T, 1)), np.tile(DRAFTER, (T, 1))

    def listed(own, log):
        ids = np.argsort(-own, axis=-1)
        return {"ids": ids, log: np.log(np.take_along_axis(own, ids, -1))}

    parts = {
        "lists": listed(q, "log_q"),
        "divergence": {"raw_kl_pq": (p * np.log(p / q)).sum(-1)},
        "relaxed": {"draft_log_p": np.log(np.full(T, 0.4)), "draft_rank": np.full(T, 2)},
    }
    own = ms.Drafts("near", "autoregressive", "match", np.full(T, -np.inf), np.full(T, 2), parts=parts)
    top = {"top_log_p": np.log(np.full(T, 0.5)), "second_log_p": np.log(np.full(T, 0.4))}
    return ms.write_store(
        tmp_path / "run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.zeros(T, int), indptr=[0, T],
        log_p=np.zeros(T), drafters={"near": own}, parts={"lists": listed(p, "log_p"), "divergence": top},
        metadata={"sampling": {"temperature": 0.0}, "logprob_space": "processed", "vocab_size": V},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "settings", "accepts"),
    [
        ("additive", {"t": SLACK}, lambda p, draft: p[draft] >= p.max() - SLACK),
        ("multiplicative", {"alpha": 0.6}, lambda p, draft: p[draft] >= 0.6 * p.max()),
        ("top-m", {"m": 2}, lambda p, draft: (p > p[draft]).sum() < 2),
    ],
)
def test_certified_drafts_of_lossy_rules_bound_no_rounds_against_simulation(store, capsys, rule, settings, accepts):
    found = ms.certify(store, f"near:K={K}", rule=rule, **settings)
    assert found.to_frame()["certified"].all() and (found.accepted == 1).all() and found.run_length() == 2.625

    # Certificates taken for acceptances of the rollout's tokens promise 2 rounds, and so does the teacher-forced law.
    certain = np.ones((T, K))
    promise = ms.bound_rounds(certain, certain, [0, T])
    assert (promise.low[0], promise.high[0]) == (2, 2)
    words = ",".join(f"{name}={value}" for name, value in settings.items())
    forced = ms.evaluate(store, f"near:K={K},rule={rule},{words}")
    assert forced.rounds[0] == 2 and forced.exactness == "teacher-forced"

    # Literally, the first draft leaves the rollout, and nothing that follows was certified.
    tokens, rounds = decoded(accepts)
    assert tokens[0] == 1 and rounds > 2

    # So no bound is given, whoever asks.
    with pytest.raises(ms.RequestError, match="may leave the rollout, so intervals along it bound no rounds"):
        ms.evaluate_bounds(store, f"near:K={K},rule={rule},{words}", "certificates")
    for asked in (lambda: found.guaranteed_length(0.0), lambda: found.kl_for_length(1.5)):
        with pytest.raises(ms.RequestError, match="certificates along it bound no rounds"):
            asked()
    path = str(store.path)
    assert main(["evaluate", path, f"near:rule={rule},{words}", "--bounds", "certificates"]) == 2
    assert main(["certify", path, "near", "--rule", f"{rule},{words}", "--target-length", "1.5"]) == 2
    assert not capsys.readouterr().out
    assert main(["certify", path, "near", "--rule", f"{rule},{words}"]) == 0
    assert "guaranteed" not in capsys.readouterr().out


def test_strict_certificates_of_the_same_store_hold_against_simulation(store):
    """The strict rule certifies none of these drafts, and rejects all of them."""
    found = ms.evaluate_bounds(store, f"near:K={K}", "certificates")
    tokens, rounds = decoded(lambda p, draft: draft == p.argmax())
    emitted, played = ms.simulate_decoding(
        lambda prefix: np.eye(V)[target(prefix).argmax()], lambda prefix, more: drafter(prefix + more),
        rule="match", draft_length=K, max_tokens=T, rng=np.random.default_rng(0),
    )  # fmt: skip
    assert tokens == emitted == (0,) * T and rounds == played == T
    assert found.low[0] == 2 and found.high[0] == T and found.uncertain == 1

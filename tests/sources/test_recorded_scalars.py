"""Recorded scalars against the functions of whole distributions, read from plain token-by-token passes."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

import markov_spec as ms
from markov_spec.acceptance import scalars, transport
from markov_spec.arrays import ABSENT
from markov_spec.cli import main
from markov_spec.sources import record, reduce, score
from markov_spec.sources import rows as distributions
from markov_spec.sources.drafters import parse_drafter
from markov_spec.sources.sampling import Sampling
from markov_spec.store.schema import DRAFTER_PARTS, TARGET_PARTS
from tests.sources.test_recorder import Hydra, each_rollout, plain_log_probs

STOP = 2
SETTINGS = {
    "plain": {"temperature": 1.0},
    "two temperatures": {"temperature": 0.8, "draft_temperature": 1.3},
    "filtered": {"temperature": 1.0, "top_k": 6, "draft_temperature": 0.7},
    "greedy drafts": {"temperature": 1.2, "draft_temperature": 0},
    "greedy target": {"temperature": 0, "draft_temperature": 1.0},
}


@pytest.fixture(scope="module", params=SETTINGS)
def recorded(request, target, prompts_path, tmp_path_factory):
    settings = SETTINGS[request.param]
    store = record(
        target, {"round4": "round:4", "hydra": Hydra(target), "lookup": "ngram:3,4"}, prompts_path,
        tmp_path_factory.mktemp("stores") / "run", **settings, max_new_tokens=9, seed=5, scalars=True, progress=False,
    )  # fmt: skip
    return store, settings


def distribution(log, temperature, top_k=0):
    """By hand, in float64, from log-probabilities of the plain softmax."""
    log = np.asarray(log, dtype=float)
    order = np.argsort(-log, kind="stable")
    kept = order[: 1 if temperature == 0 else top_k or None]
    weights = np.zeros(log.size)
    weights[kept] = 1 if temperature == 0 else np.exp((log[kept] - log.max()) / temperature)
    return weights / weights.sum()


def pair(settings, log_p, log_q):
    top_k, temperature = settings.get("top_k", 0), settings["temperature"]
    drafting = settings.get("draft_temperature", temperature)
    return distribution(log_p, temperature, top_k), distribution(log_q, drafting, top_k)


def of_token(p, v):
    """Log-probability and rank of a token."""
    if p[v] == 0:
        return -np.inf, ABSENT
    return np.log(p[v]), int(np.sum(p > p[v]) + np.sum(p[:v] == p[v])) + 1


def expected(p, q, log_p, log_q, x):
    """Every column of a drafter that samples, at one cell."""
    multi = {
        "coupling": scalars.coupling(p, q, x),
        "without_replacement_2": transport.without_replacement(p, q, x, 2),
    }
    for m in (2, 4, 8):
        multi |= {f"c_{m}": scalars.recursive_scale(p, q, m), f"rho_{m}": scalars.k_seq_scale(p, q, m)}
        _, multi[f"transport_{m}_low"], multi[f"transport_{m}_high"] = transport.transport_bounds(p, q, x, m)
    drafted = of_token(p, int(np.argmax(log_q)))
    return {
        "divergence": {
            "overlap": scalars.overlap(p, q),
            "kl_pq": scalars.kl(p, q),
            "kl_qp": scalars.kl(q, p),
            "entropy": scalars.entropy(q),
            "varentropy": scalars.varentropy(q),
            "cost": scalars.stop_aware_cost(p, q, [STOP]),
            "raw_kl_pq": scalars.kl(np.exp(log_p), np.exp(log_q)),
            "raw_kl_qp": scalars.kl(np.exp(log_q), np.exp(log_p)),
            "raw_entropy": scalars.entropy(np.exp(log_q)),
        },
        "multi": multi,
        "relaxed": {"draft_log_p": drafted[0], "draft_rank": drafted[1]},
    }


def check(store, name, cell, wanted):
    for part, columns in wanted.items():
        found = store.drafter_part(name, part)
        assert found.keys() == columns.keys()
        for column, value in columns.items():
            np.testing.assert_allclose(found[column][cell], value, rtol=2e-4, atol=2e-5, err_msg=f"{column} {cell}")


def test_target_columns_against_reference(recorded, target):
    store, settings = recorded
    rollouts, spread = store.rollouts(), store.part("divergence")
    assert spread.keys() == TARGET_PARTS["divergence"].keys()
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        for t in range(len(tokens)):
            raw = plain_log_probs(target.model, prompt + tokens[:t]).numpy()
            p = distribution(raw, settings["temperature"], settings.get("top_k", 0))
            first, second = np.sort(p)[::-1][:2]
            wanted = {
                "entropy": scalars.entropy(p),
                "varentropy": scalars.varentropy(p),
                "raw_entropy": scalars.entropy(np.exp(raw)),
                "raw_varentropy": scalars.varentropy(np.exp(raw)),
                "top_log_p": np.log(first),
                "second_log_p": np.log(second) if second else -np.inf,
            }
            for column, value in wanted.items():
                np.testing.assert_allclose(spread[column][rows.start + t], value, rtol=2e-4, atol=2e-5)


def test_autoregressive_drafter_against_reference(recorded, target):
    store, settings = recorded
    drafter, rollouts = parse_drafter("round:4", target), store.rollouts()
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        for t, x in enumerate(tokens):
            log_p, log_q = (plain_log_probs(m.model, prompt + tokens[:t]).numpy() for m in (target, drafter))
            p, q = pair(settings, log_p, log_q)
            check(store, "round4", rows.start + t, expected(p, q, log_p, log_q, x))
            with np.errstate(divide="ignore"):
                np.testing.assert_allclose(store.drafter("round4").log_q[rows.start + t], np.log(q[x]), atol=5e-5)


def test_block_drafter_against_reference(recorded, target):
    store, settings = recorded
    hydra, rollouts = Hydra(target), store.rollouts()
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        after = [plain_log_probs(target.model, prompt + tokens[:t]).numpy() for t in range(len(tokens))]
        for s in range(len(tokens)):
            with torch.inference_mode():
                states = target.model(torch.tensor([prompt + tokens[:s]]), output_hidden_states=True).hidden_states
            state = torch.cat([states[2][0, -1], states[-1][0, -1]]).float()
            for k in range(hydra.depth):
                if s + k >= len(tokens):
                    assert np.isnan(store.drafter_part("hydra", "multi")["coupling"][rows.start + s, k])
                    assert store.drafter_part("hydra", "relaxed")["draft_rank"][rows.start + s, k] == ABSENT
                    continue
                before = (prompt + tokens)[len(prompt) + s + k - 1]
                log_q = torch.log_softmax(state @ hydra.map + hydra.bigram[before], -1).double().numpy()
                log_q -= np.log(np.exp(log_q).sum())
                p, q = pair(settings, after[s + k], log_q)
                wanted = expected(p, q, after[s + k], log_q, tokens[s + k])
                check(store, "hydra", (rows.start + s, k), wanted)


def test_lookup_has_what_one_proposal_has_against_reference(recorded, target):
    store, settings = recorded
    lookup, rollouts = parse_drafter("ngram:3,4", target), store.rollouts()
    assert store.drafter_parts("lookup") == ("divergence", "law", "relaxed")
    proposed = 0
    for rows, prompt, _ in each_rollout(store):
        tokens = rollouts.tokens[rows].tolist()
        after = [plain_log_probs(target.model, prompt + tokens[:t]).numpy() for t in range(len(tokens))]
        for s in range(len(tokens)):
            drafts = lookup.propose(prompt + tokens[:s], [STOP])
            for k in range(min(4, len(tokens) - s)):
                p, _ = pair(settings, after[s + k], after[s + k])
                q, judged = np.zeros(p.size), (-np.inf, ABSENT)
                if k < len(drafts):
                    q[drafts[k]], judged, proposed = 1, of_token(p, drafts[k]), proposed + 1
                wanted = {
                    "divergence": {"overlap": p @ q, "cost": scalars.stop_aware_cost(p, q, [STOP])},
                    "relaxed": {"draft_log_p": judged[0], "draft_rank": judged[1]},
                }
                check(store, "lookup", (rows.start + s, k), wanted)
    assert proposed > 0


def test_parts_are_whole_and_sound_invariant(recorded):
    store, _ = recorded
    assert not [f for f in ms.store.check_integrity(store.path) if f.severity == "error"]
    for name in ("round4", "hydra"):
        for part in ("divergence", "multi", "relaxed"):
            assert store.drafter_part(name, part).keys() == DRAFTER_PARTS[part].keys()
    multi = store.drafter_part("hydra", "multi")
    for m in (2, 4, 8):
        inside = ~np.isnan(multi[f"transport_{m}_low"])
        assert (multi[f"transport_{m}_low"] <= multi[f"transport_{m}_high"])[inside].all()


def test_row_chunks_change_no_number_invariant(target, prompts_path, tmp_path, monkeypatch):
    stores = []
    for size in (distributions.CHUNK_BYTES, 8 * distributions.ROW_ARRAYS * 40 * 4, 1):
        monkeypatch.setattr(distributions, "CHUNK_BYTES", size)
        drafters = {"hydra": Hydra(target), "round4": "round:4", "lookup": "ngram:3,4"}
        stores.append(
            record(target, drafters, prompts_path, tmp_path / str(size), max_new_tokens=6, scalars=True, progress=False)
        )
    for other in stores[1:]:
        for name in other.drafters:
            for part in other.drafter_parts(name):
                for column, values in stores[0].drafter_part(name, part).items():
                    np.testing.assert_allclose(other.drafter_part(name, part)[column], values, rtol=1e-6)
        for column, values in stores[0].part("divergence").items():
            np.testing.assert_allclose(other.part("divergence")[column], values, rtol=1e-6)


class Echo:
    """A block drafter of one depth that says what it was made with."""

    depth, hidden_layers = 1, ()

    def __init__(self, rows):
        self.rows = rows

    def log_probs(self, tokens, hidden, starts):
        return self.rows[starts - 1][:, :, None]


def test_wide_float32_rows_are_divided_by_their_sum_against_closed_form():
    torch.manual_seed(0)
    raw = torch.log_softmax(5 * torch.randn(3, 50_000), -1)
    assert (raw.double().exp().sum(-1) - 1).abs().min() > 3e-7
    own = distributions.Rows(raw)
    scored = score.Scored([1, 7, 8, 9], 1, own, own, [], [2], 50_000)
    found = reduce.drafter_columns(Echo(raw), scored, reduce.Kept(scalars=True), Sampling())
    for name, same in {"overlap": 1, "kl_pq": 0, "cost": 0}.items():
        assert (found["divergence"][name] == same).all()
    for name in ("c_8", "rho_8", "without_replacement_2", "transport_8_high"):
        np.testing.assert_allclose(found["multi"][name], 1, rtol=1e-7)


def test_stop_token_beyond_the_vocabulary_changes_no_cost_invariant(target, prompts_path, tmp_path):
    costs = []
    for name, stops in (("own", STOP), ("more", [STOP, 99])):
        model = copy.deepcopy(target.model)
        model.generation_config.eos_token_id = stops
        store = record(
            replace(target, model=model), {"round4": "round:4"}, prompts_path, tmp_path / name, max_new_tokens=4,
            scalars=True, progress=False,
        )  # fmt: skip
        costs.append(store.drafter_part("round4", "divergence")["cost"].tolist())
    assert costs[0] == costs[1]


def test_without_scalars_less_is_kept_invariant(target, prompts_path, tmp_path):
    drafters = {"round4": "round:4", "lookup": "ngram:3,4"}
    some = record(target, drafters, prompts_path, tmp_path / "a", max_new_tokens=4, divergence=True, progress=False)
    assert some.drafter_parts("round4") == some.drafter_parts("lookup") == ("divergence", "law")
    kept = {"overlap", "raw_kl_pq", "raw_kl_qp", "raw_entropy"}
    assert some.drafter_part("round4", "divergence").keys() == kept
    assert some.drafter_part("lookup", "divergence").keys() == {"overlap"}
    assert some.part("divergence").keys() == {"entropy", "varentropy", "raw_entropy", "raw_varentropy"}
    none = record(target, drafters, prompts_path, tmp_path / "b", max_new_tokens=4, progress=False)
    assert none.drafter_parts("round4") == ("law",)


def test_command_line_records_scalars_and_draft_temperature_invariant(target_path, prompts_path, tmp_path, capsys):
    words = ["record", "--target", f"hf:{target_path}", "--drafter", "d=round:4", "--prompts", str(prompts_path)]
    words += ["--out", str(tmp_path / "run"), "--max-new-tokens", "4", "--scalars", "--draft-temperature", "0"]
    assert main(words) == 0
    store = ms.open_store(tmp_path / "run")
    assert store.drafter_parts("d") == ("divergence", "law", "multi", "relaxed")
    assert (store.metadata["sampling"]["temperature"], store.drafter("d").rule) == (1.0, "match")
    assert store.facts()["drafters"]["d"]["sampling"]["temperature"] == 0

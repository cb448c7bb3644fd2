"""Rules that read more than the law, prices and conventions, through the verb on stores."""

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

import markov_spec as ms
from markov_spec.acceptance.lossy import LOSSY
from markov_spec.cli import main
from markov_spec.evaluation import laws
from markov_spec.latency import Affine
from markov_spec.metrics import CONVENTIONS
from markov_spec.report import evaluation_table

INDPTR = np.array([0, 4, 9, 10])
N, K = 10, 3


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(3)
    multi, relaxed = {}, {}
    for name, shape in (("auto", (N,)), ("block", (N, K))):
        scales = {f"{c}_{m}": rng.uniform(1, m, shape) for c in ("c", "rho") for m in (2, 4, 8)}
        multi[name] = {**scales, "coupling": rng.random(shape)}
        relaxed[name] = {"draft_log_p": np.log(rng.uniform(0.01, 0.6, shape)), "draft_rank": rng.integers(1, 4, shape)}
    drafters = {
        name: ms.Drafts(
            name, kind, "rejection", np.log(rng.uniform(0.05, 1, shape)), rng.integers(1, 3, shape),
            parts={"multi": multi[name], "relaxed": relaxed[name]},
        )
        for name, kind, shape in (("auto", "autoregressive", (N,)), ("block", "block", (N, K)))
    }  # fmt: skip
    hit = rng.random((N, K)) < 0.7
    drafted = rng.integers(0, K + 1, N)
    drafters["lookup"] = ms.Drafts("lookup", "block", "match", np.where(hit, 0, -np.inf), drafted=drafted)
    top = rng.uniform(0.4, 0.7, N)
    target = {
        "entropy": rng.uniform(0, 2, N), "varentropy": rng.random(N), "top_log_p": np.log(top),
        "second_log_p": np.log((1 - top) * rng.random(N)),
    }  # fmt: skip
    return ms.write_store(
        tmp_path / "run", rollout_ids=list("abc"), prompt_ids=list("pqr"), benchmarks=["x", "y", "y"],
        tokens=rng.integers(0, 9, N), indptr=INDPTR, log_p=np.log(rng.uniform(0.1, 1, N)), drafters=drafters,
        parts={"divergence": target}, finish_reasons=["stop", "length", "length"],
        prompt_tokens=[np.arange(n) for n in (3, 0, 7)],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["auto", "block"])
@pytest.mark.parametrize(
    "settings", ["node-recursive,m=2", "node-recursive,m=1", "node-k-seq,m=8", "recorded,of=coupling"]
)
def test_rules_of_recorded_scalars_against_reference(store, name, settings):
    rule, setting = settings.split(",")
    found = ms.evaluate(store, f"{name}:K=2,rule={settings}")
    drafts, multi = store.drafter(name), store.drafter_part(name, "multi")
    cut = (slice(None), slice(2)) if name == "block" else slice(None)
    options = {"log_accept": np.log(multi["coupling"][cut])} if rule == "recorded" else {"scale": 1}
    if setting == "m=2":
        options["scale"] = multi["c_2"][cut]
    if setting == "m=8":
        options["scale"] = multi["rho_8"][cut]
    law = ms.round_law(store.rollouts().log_p, drafts.log_q[cut], INDPTR, rule=rule, draft_length=2, **options)
    np.testing.assert_allclose(found.rounds, ms.solve(law).expected, rtol=1e-12)
    assert found.exactness == "exact" and found.results()[0]["settings"] == dict(
        [(setting.split("=")[0], 1 if setting == "m=1" else found.settings[setting.split("=")[0]])]
    )


@pytest.mark.parametrize("name", ["auto", "block"])
@pytest.mark.parametrize(
    "settings", ["typical", "typical,epsilon=0.2,delta=0.9", "additive,t=0.2", "multiplicative,alpha=0.4", "top-m,m=2",
                 "margin,margin=0.3"],
)  # fmt: skip
def test_lossy_rules_against_reference(store, name, settings):
    rule, *given = settings.split(",")
    found = ms.evaluate(store, f"{name}:rule={settings},K=3")
    columns = {**store.drafter_part(name, "relaxed"), **store.part("divergence")}
    thresholds = {key: float(value) if "." in value else int(value) for key, value in (g.split("=") for g in given)}
    lossy = LOSSY[rule]
    hit = lossy.function(*(columns[column] for column in lossy.reads), INDPTR, **thresholds)
    rounds = ms.solve(ms.round_law(None, None, INDPTR, rule="match", hit=hit, draft_length=3))
    np.testing.assert_array_equal(found.rounds, rounds.expected)
    assert found.exactness == "teacher-forced" and found.results()[0]["exactness"] == "teacher-forced"


@pytest.mark.parametrize(
    ("contender", "message"),
    [
        ("auto:rule=node-recursive,m=3", "found m=3; allowed: 1, 2, 4, 8, which are recorded"),
        ("auto:rule=recorded,of=without_replacement_2", "needs 'without_replacement_2' in part 'multi'"),
        ("auto:rule=recorded,of=transport_2_low", "found of='transport_2_low'; allowed: coupling or"),
        ("auto:rule=recorded", "rule 'recorded' needs of; allowed: of=coupling or of=without_replacement_2"),
        ("auto:rule=additive", "rule 'additive' needs t; allowed: t=0.1"),
        ("auto:rule=additive,t=2", "t: found 2; allowed: a number from 0"),
        ("lookup:rule=top-m,m=2", "needs 'draft_rank' in part 'relaxed' of drafter 'lookup'"),
    ],
)  # fmt: skip
def test_what_was_not_recorded_is_named_invariant(store, contender, message):
    with pytest.raises(ValueError, match=message):
        ms.evaluate(store, contender)


def test_settings_are_judged_before_reading_invariant(store):
    for contender in ("auto:rule=additive,t=2", "auto:rule=typical,epsilon=nan", "auto:k=3", "auto:K=1-3"):
        with pytest.raises(ms.RequestError, match=f"contender '?{contender.split('=')[0]}"):
            ms.evaluate(store, contender)
    with pytest.raises(ms.RequestError, match=r"price: found 20\.0; allowed: latency\.Affine"):
        ms.evaluate(store, "auto", price=20.0)


def test_law_of_a_contender_against_reference(store):
    for contender in ("auto:K=2", "block:rule=block", "lookup"):
        rounds = ms.solve(ms.law_of(store, contender))
        np.testing.assert_array_equal(rounds.expected, ms.evaluate(store, contender).rounds)


def test_labels_and_figures_of_a_convention_go_together_invariant(store, capsys):
    found = ms.evaluate(store, "auto", convention="vllm")
    low, high = found.length
    assert found.exactness == "bound" and f"{low:.4f} to {high:.4f} tokens per round as vllm counts (bound" in repr(
        found
    )
    assert main(["evaluate", str(store.path), "auto", "auto:rule=typical"]) == 0
    header, first, second = capsys.readouterr().out.splitlines()[:3]
    assert "exactness" in header and " exact " in first and " teacher-forced " in second
    assert main(["proxies", str(store.path), "auto:rule=typical"]) == 0
    assert "exact (teacher-forced)" in capsys.readouterr().out


def test_narrow_tables_lose_no_figure_invariant(store):
    found = [ms.evaluate(store, name) for name in ("auto", "block", "lookup")]
    table = evaluation_table(store.path, found)
    for width in (40, 60, 80, 100):
        console = Console(file=io.StringIO(), width=width)
        console.width = max(width, console.measure(table, options=console.options.update(max_width=10_000)).minimum)
        console.print(table)
        told = re.findall(r"(?<!\d)\.\d\d\b", console.file.getvalue())
        rates = [rate for one in found for rate in one.results()[0]["acceptance_by_depth"]["conditional"]]
        assert sorted(told) == sorted(f"{rate:.2f}"[1:] for rate in rates if rate is not None and rate < 0.995)


def test_independent_drafts_against_closed_form(store):
    one, two = (ms.evaluate(store, f"auto:K=1,rule=independent,m={m}") for m in (1, 2))
    q = np.exp(store.drafter("auto").log_q.astype(np.float64))
    for found, accept in ((one, q), (two, 1 - (1 - q) ** 2)):
        law = ms.RoundLaw.from_acceptance(accept[:, None], INDPTR)
        np.testing.assert_allclose(found.rounds, ms.solve(law).expected, rtol=1e-6)


def test_raw_log_probs_of_other_sampling_are_refused_invariant(tmp_path):
    words = {"rollout_ids": ["a"], "prompt_ids": ["p"], "tokens": np.array([1, 2]), "indptr": [0, 2]}
    drafters = {
        "d": ms.Drafts("d", "autoregressive", "rejection", np.log([0.5, 0.5]), np.array([1, 2])),
    }
    for i, (space, sampling, fine) in enumerate(
        [
            ("raw", {"temperature": 0.5}, False), (None, {"temperature": 0.5}, False), ("raw", {"top_p": 0.9}, False),
            ("raw", {"temperature": 1.0}, True), ("processed", {"temperature": 0.5}, True), (None, {}, True),
            (None, {"temperature": 1, "min_p": 0.1}, False), (None, {"temperature": 1, "typical_p": 0.9}, False),
        ]
    ):  # fmt: skip
        metadata = {"sampling": sampling, **({} if space is None else {"logprob_space": space})}
        store = ms.write_store(
            tmp_path / str(i), **words, log_p=np.log([0.5, 0.4]), drafters=drafters, metadata=metadata
        )
        ms.evaluate(store, "d:rule=match")  # reads no probability
        for contender in ("d", "d:rule=independent"):
            if fine:
                ms.evaluate(store, contender)
            else:
                with pytest.raises(ValueError, match=r"logprob_space .* allowed: 'processed'"):
                    ms.evaluate(store, contender)


def test_raw_log_probs_of_a_drafter_are_refused_invariant(tmp_path):
    sampling = {"temperature": 0.5}
    words = {"rollout_ids": ["a"], "prompt_ids": ["p"], "tokens": np.array([1, 2]), "indptr": [0, 2]}
    drafters = {
        space: ms.Drafts(
            space, "autoregressive", "rejection", np.log([0.5, 0.5]),
            metadata={"sampling": sampling, "logprob_space": space},
        )
        for space in ("raw", "processed")
    }  # fmt: skip
    store = ms.write_store(
        tmp_path / "s", **words, log_p=np.log([0.5, 0.4]), drafters=drafters,
        metadata={"sampling": sampling, "logprob_space": "processed"},
    )  # fmt: skip
    ms.evaluate(store, "processed")
    with pytest.raises(ValueError, match=r"drafter 'raw': metadata: found logprob_space 'raw'"):
        ms.evaluate(store, "raw")


def test_errors_name_the_rollout_by_its_id_invariant(tmp_path):
    near = np.full(9, 1.00005)  # a sum in float32 may end beyond 1
    parts = {"multi": {"c_2": 2 - near, "coupling": near}}
    drafts = ms.Drafts("d", "autoregressive", "rejection", np.full(9, -1.0), parts=parts)
    words = {"prompt_ids": list("pqr"), "tokens": np.zeros(9, int), "indptr": [0, 3, 6, 9], "log_p": np.full(9, -1.0)}
    store = ms.write_store(tmp_path / "s", rollout_ids=["first", "second", "third"], **words, drafters={"d": drafts})
    for contender in ("d:rule=node-recursive,m=2", "d:rule=recorded,of=coupling"):
        assert (ms.evaluate(store, contender).rounds == 1).all()
    chosen = laws.plan(store.batch(1, 3), "d:rule=node-recursive,m=2")
    chosen.columns["scale"][4] = 0.5
    with pytest.raises(ValueError, match=r"contender d:.*: scale: rollout 'third', position 1: found 0\.5"):
        chosen.law(0, 2)


def test_prices_against_closed_form(store):
    price = Affine(10.0, per_depth=1.0, per_draft=0.5, per_context=0.25)
    for first_start in (0, 1):
        none = ms.evaluate(store, "auto:rule=none", price=price, first_start=first_start)
        sizes, prompts = np.diff(INDPTR), np.array([3, 0, 7])
        each = [sum(10 + 0.25 * (p + s) for s in range(first_start, n)) for n, p in zip(sizes, prompts, strict=True)]
        np.testing.assert_allclose(none.price, each, rtol=1e-12)
        assert (none.price_variance == 0).all()
    row = ms.evaluate(store, "auto", price=Affine(1.0)).results()[0]
    assert row["expected_price"] == pytest.approx(row["expected_rounds"], rel=1e-12)
    assert row["price_per_token"] == pytest.approx(1 / row["pooled_length"], rel=1e-12)
    found = ms.evaluate(store, "lookup", price=Affine(1.0, per_draft=0.1))
    np.testing.assert_allclose(found.price, found.rounds + 0.1 * found.drafted, rtol=1e-12)
    np.testing.assert_allclose(
        ms.evaluate(store, "auto", price=Affine(2.0)).price_variance, 4 * ms.evaluate(store, "auto").variance
    )


@pytest.mark.parametrize("name", CONVENTIONS)
def test_conventions_against_the_aggregates_invariant(store, name):
    for contender in ("auto", "block:K=2", "lookup", "auto:rule=none"):
        found = ms.evaluate(store, contender, convention=name)
        plain = ms.evaluate(store, contender, first_start=found.first_start)
        (row,) = found.results()
        low, high = row["convention_length"]
        assert row["convention"] == name and row["exactness"] == ("exact" if low == high else "bound")
        base = plain.results()[0]
        expected = {
            "edr": (base["pooled_length"],) * 2, "sglang": (N / base["expected_rounds"],) * 2,
            "speculators": (base["drafts_only_length"],) * 2,
        }.get(name)  # fmt: skip
        if expected:
            assert (low, high) == pytest.approx(expected, rel=1e-12)
        elif low is None:
            assert name == "vllm" and contender == "auto:rule=none"  # no round drafts
        elif name == "vllm" and contender != "lookup":
            assert low == pytest.approx(base["untrimmed_length"], rel=1e-9) and high >= low
        else:
            assert low <= high
        assert found.length in (low, (low, high))
        assert [r["benchmark"] for r in found.results(by="benchmark")] == ["x", "y"]


def test_conventions_refuse_and_print_invariant(store, capsys):
    with pytest.raises(ms.RequestError, match="convention: found 'trt'; allowed: edr, deepspec"):
        ms.evaluate(store, "auto", convention="trt")
    with pytest.raises(ms.RequestError, match="first_start: found 0 with convention 'vllm'; allowed: 1"):
        ms.evaluate(store, "auto", convention="vllm", first_start=0)
    assert main(["evaluate", str(store.path), "auto", "lookup", "--convention", "vllm"]) == 0
    told = capsys.readouterr().out
    assert "vllm length" in told and " to " in told and "past the end" in told
    assert main(["evaluate", str(store.path), "auto", "--convention", "vllm", "--format", "csv"]) == 0
    assert "convention_low,convention_high" in capsys.readouterr().out
    assert main(["evaluate", str(store.path), "auto", "--convention", "edr", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["convention_length"] == pytest.approx([row["pooled_length"]] * 2, rel=1e-12)
    assert main(["evaluate", str(store.path), "auto", "--convention", "vllm", "--first-start", "0"]) == 2

"""Lists of a block drafter past the end of a rollout: data if they were recorded, and then as any other."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import markov_spec as ms
from tests.store.drawn import DEPTH, findings
from tests.store.drawn import given as drawn
from tests.store.sample import past_end, rewrite_part, same_bits, troubles

D, V = 3, 4
LENGTHS = [5, 1, 0, 2, 8]
INDPTR = np.concatenate([[0], np.cumsum(LENGTHS)])
N = int(INDPTR[-1])
PAST = past_end(INDPTR, D)


def whole_lists(seed: int = 0) -> dict[str, np.ndarray]:
    """Whole distributions of every start and depth, best first."""
    rng = np.random.default_rng(seed)
    chances = -np.sort(-rng.dirichlet(np.full(V, 0.6), (N, D)), axis=-1)
    ids = np.argsort(rng.random((N, D, V)), axis=-1).astype(np.int32)
    return {"ids": ids, "log_q": np.log(chances).astype(np.float32), "tail_mass": np.zeros((N, D), np.float32)}


def cut(part: dict[str, np.ndarray], none: np.ndarray) -> dict[str, np.ndarray]:
    """These lists without those that are ``none`` (N, D)."""
    fills = {"ids": -1, "log_q": np.nan, "tail_mass": np.nan}
    return {name: np.where(none.reshape(none.shape + (1,) * (v.ndim - 2)), v.dtype.type(fills[name]), v)
            for name, v in part.items()}  # fmt: skip


def write(path: Path, part: dict[str, Any], **changes: Any) -> ms.Store:
    tokens = np.random.default_rng(1).integers(0, V, N)
    drafts = ms.Drafts("block", "block", "rejection", np.full((N, D), -1.0), parts={"lists": part})
    given = {"rollout_ids": list("abcde"), "prompt_ids": list("ppqqr"), "tokens": tokens, "indptr": INDPTR}
    return ms.write_store(path, **given, log_p=np.full(N, -1.0), metadata={"vocab_size": V},
                          **{"drafters": {"block": drafts}, **changes})  # fmt: skip


@settings(max_examples=30)
@given(seed=st.integers(0, 99), depths=st.lists(st.integers(0, D), min_size=N, max_size=N))
def test_what_is_recorded_comes_back_invariant(
    tmp_path_factory: pytest.TempPathFactory, seed: int, depths: list
) -> None:
    part = cut(whole_lists(seed), PAST & (np.arange(D) >= np.array(depths)[:, None]))
    store = write(tmp_path_factory.mktemp("s") / "s", part)
    found = ms.open_store(store.path).drafter_part("block", "lists")
    assert found.keys() == part.keys() and all(same_bits(found[name], values) for name, values in part.items())
    assert troubles(store.path) == []


def test_ties_past_the_end_are_stored_by_id_against_closed_form(tmp_path: Path) -> None:
    part = {"ids": np.tile([9, 4, 3, 7, -1], (N, D, 1)), "log_q": np.tile([-1, -1, -2, -2, -np.inf], (N, D, 1))}
    assert (write(tmp_path / "s", part).drafter_part("block", "lists")["ids"] == [4, 9, 3, 7, -1]).all()


CELL = (5, 1)  # depth 2 of the one start of rollout 'b', whose depths 2 and 3 lie past the end
NONE = {"ids": [-1] * V, "log_q": [np.nan] * V, "tail_mass": np.nan}
FAULTS = [
    ({**NONE, "ids": [3, -1, -1, -1]}, "ids: PLACE, entry 1: found 3; allowed: -1, as the first entry of log_q is nan"),
    ({**NONE, "log_q": [np.nan, np.nan, -2, np.nan]}, "log_q: PLACE, entry 3: found -2.0; allowed: nan, as the first"),
    ({**NONE, "tail_mass": 0.0}, "tail_mass: PLACE: found 0.0; allowed: nan, as the first entry of log_q is nan"),
    (NONE, "log_q: rollout 'b', position 0, depth 3, entry 1: found .*; allowed: nan, as past the end no list is rec"),
    ({"tail_mass": np.nan}, "tail_mass: PLACE: found nan; allowed: 0 to 1"),
    ({"log_q": [-1, -2, np.nan, np.nan]}, "log_q: PLACE, entry 3: found nan; allowed: -inf to 0"),
    ({"log_q": [0.5, -2, -3, -4]}, "log_q: PLACE, entry 1: found 0.5; allowed: -inf to 0"),
    ({"log_q": [-1, -3, -2, -4]}, "log_q: PLACE, entry 3: found -2.0; allowed: no more than the entry before"),
    ({"ids": [3, 5, 3, 4]}, r"ids: PLACE: found \[3 5 3 4\]; allowed: each id once"),
    ({"ids": [3, 5, -1, -1], "log_q": [-1, -2, -3, -3]}, "PLACE, entry 3: found -3.0; allowed: -inf where the id is"),
    ({"ids": [3, 5, 6, -2]}, "ids: PLACE, entry 4: found -2; allowed: -1 to"),
]  # fmt: skip


def faulty(change: dict[str, Any]) -> dict[str, np.ndarray]:
    part = whole_lists()
    for name, values in change.items():
        part[name][CELL] = values
    return part


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_neither_a_list_nor_none_is_refused_invariant(tmp_path: Path, change: dict, message: str) -> None:
    found = message.replace("PLACE", "rollout 'b', position 0, depth 2")
    with pytest.raises(ValueError, match=found):
        write(tmp_path / "s", faulty(change))
    assert list(tmp_path.iterdir()) == []
    store = write(tmp_path / "s", whole_lists())
    flat = {name: values.ravel() for name, values in faulty(change).items()}

    def rewritten(table: pa.Table) -> pa.Table:
        for i, field in enumerate(table.schema):
            if field.name in flat:
                old = table[field.name].combine_chunks()
                new = pa.LargeListArray.from_arrays(old.offsets, pa.array(flat[field.name], field.type.value_type))
                table = table.set_column(i, field, new)
        return table

    rewrite_part(store.path / "drafters" / "block", "lists", rewritten)
    (told,) = troubles(store.path)
    assert told.severity == "error" and told.where == "drafters/block/lists-00000.parquet"


def test_only_lists_of_a_block_drafter_pass_the_end_invariant(tmp_path: Path) -> None:
    nothing = {"ids": np.full((N, 1), -1), "log_q": np.full((N, 1), np.nan)}
    auto = ms.Drafts("auto", "autoregressive", "rejection", np.zeros(N), parts={"lists": nothing})
    with pytest.raises(ValueError, match="log_q: rollout 'a', position 0, entry 1: found nan; allowed: -inf to 0"):
        write(tmp_path / "s", {}, drafters={"auto": auto})
    target = {"ids": nothing["ids"], "log_p": nothing["log_q"]}
    with pytest.raises(ValueError, match="log_p: rollout 'a', position 0, entry 1: found nan; allowed: -inf to 0"):
        write(tmp_path / "s", {}, drafters={}, parts={"lists": target})
    overlap = {"overlap": np.full((N, D), 0.5)}
    block = ms.Drafts("block", "block", "rejection", np.zeros((N, D)), parts={"divergence": overlap})
    read = write(tmp_path / "s", {}, drafters={"block": block}).drafter_part("block", "divergence")["overlap"]
    assert np.isnan(read[PAST]).all() and (read[~PAST] == 0.5).all()


def test_empty_lists_of_no_entries_are_not_recorded_invariant(tmp_path: Path) -> None:
    part = {"ids": np.zeros((N, D, 0), int), "log_q": np.zeros((N, D, 0)), "tail_mass": np.ones((N, D))}
    with pytest.raises(ValueError, match=r"tail_mass: rollout 'a', position 3, depth 3: found 1\.0; allowed: nan"):
        write(tmp_path / "s", part)
    store = write(tmp_path / "s", cut(part, PAST))
    assert np.isnan(store.drafter_part("block", "lists")["tail_mass"][PAST]).all() and troubles(store.path) == []


def _deep(seed: int) -> tuple[dict[str, Any], np.ndarray]:
    """Many short rollouts with drafters whose lists pass their ends, and which cells do."""
    arguments = drawn(seed, rollouts=60, length=4)
    return arguments, past_end(arguments["indptr"], DEPTH)


@pytest.mark.parametrize("seed", range(4))
def test_sound_lists_raise_no_alarm_invariant(tmp_path: Path, seed: int) -> None:
    arguments, past = _deep(seed)
    block = arguments["drafters"]["block"].parts["lists"]
    assert past.sum() > 100 and findings(tmp_path / "s", arguments) == []
    assert not np.isnan(ms.open_store(tmp_path / "s").drafter_part("block", "lists")["log_q"]).any()
    block |= cut(block, past)
    assert findings(tmp_path / "s", arguments) == []


def test_faults_of_lists_past_the_end_are_found_against_closed_form(tmp_path: Path) -> None:
    arguments, past = _deep(1)
    part, count = arguments["drafters"]["block"].parts["lists"], int(past.sum())
    whole = {name: values.copy() for name, values in part.items()}
    part["log_q"][past] += np.log(0.5)
    (told,) = findings(tmp_path / "s", arguments)
    assert (
        told.where == "drafters/block/lists-00000.parquet"
        and f"which {count} of {past.size} lists miss" in told.message
    )
    part |= whole
    part["log_q"][past] = [-0.1, -9999, -9999, -9999]
    part["tail_mass"][past] = 1 - np.exp(-0.1)
    (told,) = findings(tmp_path / "s", arguments)
    assert f"found -9999, {3 * count} times, a sentinel for log 0" in told.message


def rounds(part: dict[str, np.ndarray], tokens: np.ndarray, budget: int) -> list[int]:
    """Rounds of literal decoding with the best ``budget`` of all paths, each listed, valued and sorted."""
    counts = []
    for a, b in itertools.pairwise(INDPTR):
        s, count = int(a), 0
        while s < b:
            paths = [path for depth in range(1, D + 1) for path in itertools.product(range(V), repeat=depth)]
            worth = {path: sum(part["log_q"][s, k, place] for k, place in enumerate(path)) for path in paths}
            best = sorted(paths, key=lambda path: (-worth[path], path))[:budget]
            drafted = {tuple(part["ids"][s, k, place] for k, place in enumerate(path)) for path in best}
            left = tuple(tokens[s : min(b, s + D)])
            s += 1 + max((n for n in range(1, len(left) + 1) if left[:n] in drafted), default=0)
            count += 1
        counts.append(count)
    return counts


@pytest.mark.parametrize("seed", range(5))
def test_trees_are_exact_with_lists_past_the_end_against_enumeration(tmp_path: Path, seed: int) -> None:
    contender, part = "block:tree=best-first,budget=20", whole_lists(seed)
    kept, none = write(tmp_path / "kept", part), write(tmp_path / "none", cut(part, PAST))
    found, open_ = ms.evaluate(kept, contender), ms.evaluate(none, contender)
    wanted = rounds(part, kept.rollouts().tokens, 20)
    assert found.exactness == "exact" and found.rounds.tolist() == wanted and (found.uncertain == 0).all()
    assert open_.exactness == "bound" and (open_.uncertain > 0).any()
    sure = open_.uncertain == 0
    assert (open_.rounds[sure] == found.rounds[sure]).all()

"""Lists of a block drafter past the end of a rollout, in JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from markov_spec.sources.exchange import LineError
from tests.sources.exchange_files import drafter, read, rollout, target

BLOCK = drafter(
    kind="block",
    columns={"log_q": [2], "lists.tail_mass": [2], "lists.ids": [2, 2], "lists.log_q": [2, 2]},
)


def line(ids: Any, logs: Any, tails: Any, name: str = "a") -> dict[str, Any]:
    """A line whose last start, the second, has these lists."""
    lists = {"ids": [[[3], [4]], ids], "log_q": [[[-0.5], [-0.5]], logs], "tail_mass": [[0, 0], tails]}
    return {"id": name, "log_q": [[-2, -3], [-4]], **{f"lists.{column}": values for column, values in lists.items()}}


@pytest.mark.parametrize("depths", [1, 2])
def test_rows_of_lists_may_pass_the_end_against_closed_form(tmp_path: Path, depths: int) -> None:
    own = line([[5], [6, 8]][:depths], [[-0.25], [-2, -1]][:depths], [0.5, 0.25][:depths])
    part = read(tmp_path, [target(), rollout()], [BLOCK, own]).store.drafter_part("d", "lists")
    deep = depths == 2
    assert part["ids"][1].tolist() == [[5, -1], [8, 6] if deep else [-1, -1]]
    np.testing.assert_array_equal(part["log_q"][1], [[-0.25, -np.inf], [-1, -2] if deep else [np.nan, np.nan]])
    np.testing.assert_array_equal(part["tail_mass"], [[0, 0], [0.5, 0.25 if deep else np.nan]])


def test_empty_list_past_the_end_is_a_list_against_closed_form(tmp_path: Path) -> None:
    own = line([[5], []], [[-0.25], []], [0.5, 1])
    part = read(tmp_path, [target(), rollout()], [BLOCK, own]).store.drafter_part("d", "lists")
    assert part["ids"][1, 1].tolist() == [-1, -1] and part["log_q"][1, 1].tolist() == [-np.inf, -np.inf]


FAULTS = [
    (([], [], [0]), "lists.ids", "position 1: found 0 values; allowed: 1 to 2, depths up to 2, those past the end"),
    (([[5]] * 3, [[-1]] * 3, [0, 0]), "lists.ids", "position 1: found 3 values; allowed: 1 to 2, depths up to 2"),
    (([[5], [6]], [[-1]], [0]), "lists.log_q", "position 1: found another number of depths than in lists.ids"),
    (([[5]], [[-1], [-1]], [0]), "lists.log_q", "position 1: found another number of depths than in lists.ids"),
    (([[5], [6]], [[-1]] * 2, [0]), "lists.tail_mass", "position 1: found 1 values; allowed: 2, one a list"),
    (([[5]], [[-1]], [0, 0]), "lists.tail_mass", "position 1: found 2 values; allowed: 1, one a list"),
    (([[5], [6]], [[-1]] * 2, [0, 2]), "lists.tail_mass", "position 1, depth 2: found 2; allowed: a number, 0 to 1"),
    (([[5], [6, 6]], [[-1], [-1, -1]], [0, 0]), "lists.ids", "position 1, depth 2: found an id twice"),
    (([[5], [6, 8]], [[-1], [-1]], [0, 0]), "lists.log_q", "position 1, depth 2: found another number of entries"),
    (([[5], [6, 8]], [[-1], [0, -1]], [0, 0]), "lists.log_q", "position 1, depth 2: found a mass above 1"),
    (([[5], [6, 8, 9]], [[-1], [-1, -2, -3]], [0, 0]), "lists.ids", "position 1, depth 2: found 3 entries; allowed:"),
    (([[5], [6]], [[-1], [None]], [0, 0]), "lists.log_q", "position 1, depth 2, entry 1: found null; allowed: a lo"),
]


@pytest.mark.parametrize(("given", "field", "message"), FAULTS)
def test_wrong_lists_past_the_end_invariant(tmp_path: Path, given: Any, field: str, message: str) -> None:
    with pytest.raises(LineError) as told:
        read(tmp_path, [target(), rollout()], [BLOCK, line(*given)])
    found = told.value.fault
    assert (found.line, found.field) == (2, field) and found.message.startswith(message), found
    assert not (tmp_path / "store").exists()
    files = [target(), rollout(), rollout("b")], [BLOCK, line(*given), line([[5]], [[-1]], [0], "b")]
    report = read(tmp_path, *files, mode="lenient")
    assert report.left_out == ("a",) and report.errors[0].message == found.message


def test_other_columns_end_with_the_rollout_invariant(tmp_path: Path) -> None:
    head = drafter(kind="block", columns={"log_q": [2], "divergence.overlap": [2]})
    for wrong in ({"log_q": [[-2, -3], [-4, -4]]}, {"divergence.overlap": [[1, 1], [1, 1]]}):
        own = {"id": "a", "log_q": [[-2, -3], [-4]], "divergence.overlap": [[1, 1], [1]], **wrong}
        with pytest.raises(LineError, match="position 1: found 2 values; allowed: 1, depths up to 2 that do not pass"):
            read(tmp_path, [target(), rollout()], [head, own])

"""What the README shows is what happens."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def run(*words):
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_python_examples_run_invariant(code):
    assert run(sys.executable, "-c", code)


# Each table, and the command of the block before it.
SHOWN = [
    (bash.rpartition("markov-spec ")[2].split(), table) for (_, bash), (kind, table) in pairwise(BLOCKS) if not kind
]


@pytest.mark.parametrize(("words", "table"), SHOWN, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_tables_are_what_commands_print_invariant(words, table):
    told = run(sys.executable, "-m", "markov_spec", *words)
    assert [line.split() for line in told.splitlines()] == [line.split() for line in table.splitlines()]


def test_two_set_up_lines_invariant():
    lines = [line for line in README.splitlines() if line.startswith("python3 -m venv ")]
    assert len(lines) == 2
    assert lines[0].endswith("markov-spec compare data/demo")

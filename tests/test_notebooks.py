"""The notebooks run, and compute what they show; those to begin with are kept without outputs.

``jupyter execute --inplace notebooks/NAME.ipynb`` renews what one shows; charts become images if vl-convert is there.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
BARE = {"quickstart", "compare"}


def numbers(cell):
    shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return [float(number) for number in re.findall(r"-?\b\d+(?:\.\d+)?\b", shown)]


def test_there_are_notebooks_invariant():
    assert {path.stem for path in NOTEBOOKS} > BARE


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_what_they_compute_against_reference(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    committed = [numbers(cell) for cell in cells]
    bare = path.stem in BARE
    assert not any(cell.outputs or cell.execution_count for cell in cells) if bare else sum(map(len, committed)) > 20
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}
    ).execute()
    for cell, wanted in zip(cells, committed, strict=True):
        assert bare or numbers(cell) == pytest.approx(wanted, rel=1e-3, abs=2e-3), cell.source
    assert any(cell.outputs for cell in cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_stay_small_invariant(path):
    assert path.stat().st_size <= 300_000

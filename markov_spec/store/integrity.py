"""Everything that is wrong with a store, found without stopping at the first."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from markov_spec.arrays import Rollouts
from markov_spec.metrics import surprise_z
from markov_spec.store.folder import Folder
from markov_spec.store.install import leftovers
from markov_spec.store.manifest import MANIFEST, fingerprint
from markov_spec.store.opening import drafter_folder, drafter_names, target_folder
from markov_spec.store.reader import Store
from markov_spec.store.schema import FIXED_SCHEMAS
from markov_spec.store.values import Rows, check_columns

T = TypeVar("T")
SUSPECT_Z = 4.0
# The sum of fewer is too far from normal to judge by.
FEWEST_TOKENS = 200
Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or worth knowing, about a store.

    Parameters
    ----------
    severity : {"error", "warning", "note"}
        ``error``: a reader refuses it or would give wrong numbers; ``warning``: probably a mistake of the recording.
    where : str
        The file or folder, relative to the store.
    message : str
    """

    severity: Severity
    where: str
    message: str


class _Report:
    def __init__(self) -> None:
        self.findings: list[Finding] = []

    def add(self, severity: Severity, where: str, message: str) -> None:
        self.findings.append(Finding(severity, where, message))

    def run(self, where: str, step: Callable[[], T]) -> T | None:
        """Do one step; whatever it raises is a finding."""
        try:
            return step()
        except Exception as error:
            self.add("error", where, str(error) or repr(error))
            return None


def check_integrity(path: str | Path) -> list[Finding]:
    """List everything that is wrong with a store; a damaged one does not raise.

    Manifests, sizes, footers, schemas, hashes, fingerprints, alignment by id, shapes, values and what interrupted
    writes left behind. Every file is read once in full.

    Parameters
    ----------
    path : path-like
        The store's folder.

    Returns
    -------
    list of Finding
        No errors and no warnings for a sound store; where entropies were recorded, the z-statistic is among the notes.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = ms.write_store(f"{folder}/run", rollout_ids=["a"], prompt_ids=["p"], tokens=np.array([5, 6]),
    ...         indptr=[0, 2], log_p=np.log([.5, .9]))
    ...     sound = ms.store.check_integrity(store.path)
    ...     (store.path / "rollouts" / "part-00000.parquet").unlink()
    ...     sound, [(f.severity, f.where) for f in ms.store.check_integrity(store.path)]
    ([], [('error', 'rollouts/part-00000.parquet')])
    """
    root = Path(os.path.realpath(path))
    report = _Report()
    for parent, name in ((root.parent, root.name), (root / "drafters", None)):
        _check_leftovers(parent, name, report)
    target = report.run(MANIFEST, lambda: target_folder(root))
    if target is None:
        return report.findings
    sound = _sound_parts(target, "", report)
    rollouts = report.run(_file(target, "", "rollouts"), Store(target, {}).rollouts) if "rollouts" in sound else None
    if rollouts is not None:
        report.run(MANIFEST, lambda: _check_rollouts(rollouts, target, report))
        vocab_size = target.manifest["metadata"].get("vocab_size")
        rows = Rows("target", rollouts.ids, rollouts.indptr, None, 0, len(rollouts), vocab_size=vocab_size)
        _check_values(target, sound, "", rows, report)
        if "divergence" in sound:
            report.run(_file(target, "", "divergence"), lambda: _check_surprise(Store(target, {}), rollouts, report))
    for name in report.run("drafters", lambda: drafter_names(root)) or []:
        _check_drafter(target, name, rollouts, report)
    return report.findings


def _check_leftovers(parent: Path, name: str | None, report: _Report) -> None:
    try:
        for left in leftovers(parent, name):
            if left.state == "tmp" or os.path.lexists(left.place):  # else: the only copy, which opening names
                what = "half written, or replaced" if left.state == "tmp" else "the old folder, whole"
                message = f"left by an interrupted write ({what}); it is not read and may be removed"
                report.add("note", str(left.path), message)
        if name is None and parent.is_dir():
            for path in sorted(parent.iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    report.add("note", f"{parent.name}/{path.name}", "a file that is no drafter; it is not read")
    except OSError as error:
        report.add("note", str(parent), f"cannot be listed, so it was not searched for interrupted writes: {error}")


def _file(folder: Folder, where: str, name: str) -> str:
    return where + str(folder.manifest["parts"][name]["files"][0]["path"])


def _sound_parts(folder: Folder, where: str, report: _Report) -> list[str]:
    sound = []
    for name in folder.names:
        found = len(report.findings)
        report.run(_file(folder, where, name), partial(folder.check_files, name))
        if len(report.findings) == found:
            report.run(_file(folder, where, name), partial(folder.check_hashes, name))
        if len(report.findings) == found:
            sound.append(name)
    return sound


def _check_rollouts(rollouts: Rollouts, target: Folder, report: _Report) -> None:
    facts = target.manifest
    for key, found in (
        ("rollouts", len(rollouts)),
        ("positions", rollouts.tokens.size),
        ("fingerprint", fingerprint(rollouts)),
    ):
        if facts[key] != found:
            report.add("error", MANIFEST, f"{key}: found {facts[key]}; the rollouts give {found}")
    sampling = facts["metadata"].get("sampling") or {}
    temperature = sampling.get("temperature")
    if temperature and sampling.get("top_k") != 1 and rollouts.log_p.size and not np.any(rollouts.log_p):
        report.add(
            "warning",
            _file(target, "", "rollouts"),
            f"every log-probability is 0 though temperature is {temperature}: recorded without log-probabilities?",
        )


def _check_surprise(store: Store, rollouts: Rollouts, report: _Report) -> None:
    spread = store.part("divergence")
    if not {"entropy", "varentropy"} <= spread.keys():
        return
    z = surprise_z(rollouts.log_p, spread["entropy"], spread["varentropy"])
    where = _file(store._target, "", "divergence")
    count = int(np.count_nonzero(spread["varentropy"]))
    if z is None:
        report.add("note", where, "no z-statistic: nothing in these rollouts was random")
    elif count < FEWEST_TOKENS:
        judged = f"{count} random tokens; fewer than {FEWEST_TOKENS}, so it judges nothing"
        report.add("note", where, f"z-statistic {z:.2f} of {judged}")
    elif abs(z) <= SUSPECT_Z:
        report.add("note", where, f"z-statistic {z:.2f}: the rollouts fit the distribution recorded for them")
    else:
        report.add(
            "warning",
            where,
            f"z-statistic {z:.1f}, beyond {SUSPECT_Z:g}: the rollouts do not come from the distribution recorded for "
            "them (another temperature, a missing filter, another model, or rollouts that were selected)",
        )


def _check_values(folder: Folder, sound: list[str], where: str, rows: Rows, report: _Report) -> None:
    def check(name: str) -> None:
        own = rows.only(folder.covered(name, rows.ids)[0]) if folder.partial(name) else rows
        for first, last, columns in folder.chunks(name, own.ids, own.indptr):
            check_columns(columns, folder.parts[name], replace(own, first=first, last=last), f"{rows.owner}: {name}")

    for name in sound:
        if name not in FIXED_SCHEMAS:
            report.run(_file(folder, where, name), partial(check, name))


def _check_drafter(target: Folder, name: str, rollouts: Rollouts | None, report: _Report) -> None:
    where = f"drafters/{name}"
    folder = report.run(f"{where}/{MANIFEST}", lambda: drafter_folder(target, name))
    if folder is None:
        return
    sound = _sound_parts(folder, f"{where}/", report)
    if rollouts is not None:
        facts = folder.manifest
        one_hot = facts["rule"] == "match" and "rank" not in folder.sizes("law")
        rows = Rows(folder.owner, rollouts.ids, rollouts.indptr, facts["depth"], 0, len(rollouts), one_hot=one_hot)
        _check_values(folder, sound, f"{where}/", rows, report)

"""Everything that is wrong with a store, found without stopping at the first."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from markov_spec.arrays import Array
from markov_spec.store.drafter_checks import check_drafter
from markov_spec.store.findings import Finding, Report
from markov_spec.store.folder import Folder
from markov_spec.store.install import clear, leftovers
from markov_spec.store.list_checks import check_lists
from markov_spec.store.manifest import MANIFEST, manifest_bytes
from markov_spec.store.opening import drafter_folder, drafter_names, target_folder
from markov_spec.store.reader import Store
from markov_spec.store.rollout_checks import check_rollouts, check_unique
from markov_spec.store.schema import FIXED_SCHEMAS
from markov_spec.store.value_checks import FEWEST_DRAFTS, MassWatch, SentinelWatch, ZeroWatch
from markov_spec.store.values import Rows, check_columns

__all__ = ["Finding", "check_integrity"]


def check_integrity(path: str | Path, *, clean: bool = False) -> list[Finding]:
    """List everything that is wrong with a store, with its likely cause; a damaged one does not raise.

    Manifests, sizes, footers, schemas, hashes, fingerprints, alignment by id, shapes, values and what interrupted
    writes left behind: every file is read once in full. Where these are sound, it is judged whether the rollouts come
    from the distributions recorded for them (also by the target's lists, which tell what temperature and filters the
    tokens look like), whether drafts are padding, or stand at the wrong positions, and whether their law is what their
    own lists give.

    In memory are one range of rollouts, a sample of a million values, and for each rollout its id and three digests.

    Parameters
    ----------
    path : path-like
        The store's folder.
    clean : bool
        Remove what interrupted writes left, of this store and of its drafters, and nothing else; move an old folder
        back to its place where it is the only copy. What another process may be writing stays.

    Returns
    -------
    list of Finding
        No errors and no warnings for a sound store, up to a chance of about 1e-7 for each kind of statistical warning;
        where entropies or lists were recorded, the z-statistic is among the notes.

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
    report = Report()
    for parent, name in ((root.parent, root.name), (root / "drafters", None)):
        _check_leftovers(parent, name, clean, report)
    target = report.run(MANIFEST, lambda: target_folder(root))
    if target is None:
        return report.findings
    _check_bytes(target, "", report)
    index = _check_target(target, report)
    for name in report.run("drafters", lambda: drafter_names(root)) or []:
        _check_drafter(target, name, index, report)
    return report.findings


def _check_leftovers(parent: Path, name: str | None, clean: bool, report: Report) -> None:
    try:
        for left in leftovers(parent, name):
            if clean:
                report.add("note", str(left.path), clear(left))
            elif left.state == "tmp" or os.path.lexists(left.place):  # else: the only copy, which opening names
                what = "half written, or replaced" if left.state == "tmp" else "the old folder, whole"
                message = (
                    f"left by an interrupted write ({what}); it is not read, and markov-spec check --clean removes it"
                )
                report.add("note", str(left.path), message)
        if name is None and parent.is_dir():
            for path in sorted(parent.iterdir()):
                if path.is_file() and not path.name.startswith("."):
                    report.add("note", f"{parent.name}/{path.name}", "a file that is no drafter; it is not read")
    except OSError as error:
        report.add("note", str(parent), f"cannot be listed, so it was not searched for interrupted writes: {error}")


def _check_bytes(folder: Folder, where: str, report: Report) -> None:
    """The checksum covers what a manifest says; its bytes say it in one way only."""
    if (folder.root / MANIFEST).read_bytes() != manifest_bytes(folder.manifest):
        told = "other bytes than were written say the same: laid out anew, or damaged between the words"
        report.add("note", f"{where}{MANIFEST}", told)


def _file(folder: Folder, where: str, name: str) -> str:
    return where + str(folder.manifest["parts"][name]["files"][0]["path"])


def _sound_parts(folder: Folder, where: str, report: Report) -> list[str]:
    sound = []
    for name in folder.names:
        found = len(report.findings)
        report.run(_file(folder, where, name), partial(folder.check_hashes, name))
        if len(report.findings) == found:
            report.run(_file(folder, where, name), partial(folder.check_files, name))
        if len(report.findings) == found:
            sound.append(name)
    return sound


def _check_target(target: Folder, report: Report) -> tuple[tuple[str, ...], Array] | None:
    """Check the target's files; give the ids and offsets of its rollouts if these are sound."""
    sound, store, metadata = _sound_parts(target, "", report), Store(target, {}), target.manifest["metadata"]
    where = _file(target, "", "rollouts")
    index = report.run(where, lambda: _index(store)) if "rollouts" in sound else None
    if index is None:
        return None
    rows = Rows("target", *index, None, 0, len(store), vocab_size=metadata.get("vocab_size"))
    good = _check_values(target, sound, "", rows, report)
    spread, lists = good.get("divergence"), good.get("lists")
    found = report.run(where, lambda: check_rollouts(store, target.manifest, where, report, spread=spread is not None))
    if found is None:
        return None
    cause = None
    if lists is not None:
        cause = report.run(lists, lambda: check_lists(store, metadata, lists, report, scored=found.scored))
    beyond = spread is not None and found.surprise is not None and found.surprise.tell(spread, cause, report)
    if lists is not None and cause is not None and cause.certain and not beyond:
        report.add("warning", lists, cause.message)
    return index


def _index(store: Store) -> tuple[tuple[str, ...], Array]:
    check_unique(store.index[0])
    return store.index


def _check_values(folder: Folder, sound: list[str], where: str, rows: Rows, report: Report) -> dict[str, str]:
    """Check the values of all parts; give those without an error, with their files."""
    good = {}
    for name in sound:
        if name not in FIXED_SCHEMAS:
            found = len(report.findings)
            report.run(_file(folder, where, name), partial(_check_part, folder, name, where, rows, report))
            if all(finding.severity != "error" for finding in report.findings[found:]):
                good[name] = _file(folder, where, name)
    return good


def _check_part(folder: Folder, name: str, where: str, rows: Rows, report: Report) -> None:
    own = rows.only(folder.covered(name, rows.ids)[0]) if folder.partial(name) else rows
    log = next((column for column in folder.sizes(name) if column in ("log_p", "log_q")), None)
    sentinels, mass, zeros = SentinelWatch(), MassWatch(), ZeroWatch()
    for first, last, columns in folder.chunks(name, own.ids, own.indptr):
        some = replace(own, first=first, last=last)
        values = check_columns(columns, folder.parts[name], some, f"{rows.owner}: {name}")
        if log is not None:
            sentinels.add(values[log], some)
            zeros.add(values[log])
        if name == "lists" and log is not None:
            mass.add(values, some)
    file = _file(folder, where, name)
    if log is not None:
        sentinels.tell("warning", file, log, report)
    if name == "lists":
        mass.tell(file, name, report)
    elif name == "law" and zeros.all_of(FEWEST_DRAFTS) and folder.manifest["rule"] != "match":
        told = "every log_q is 0, though drafts are sampled: recorded without log-probabilities?"
        report.add("warning", file, told)


def _check_drafter(target: Folder, name: str, index: tuple[tuple[str, ...], Array] | None, report: Report) -> None:
    where = f"drafters/{name}"
    folder = report.run(f"{where}/{MANIFEST}", lambda: drafter_folder(target, name))
    if folder is None:
        return
    _check_bytes(folder, f"{where}/", report)
    sound = _sound_parts(folder, f"{where}/", report)
    if index is None:
        return
    facts, count = folder.manifest, len(index[0])
    one_hot = facts["rule"] == "match" and "rank" not in folder.sizes("law")
    unlisted = "lists" in folder.names
    rows = Rows(folder.owner, *index, facts["depth"], 0, count, one_hot=one_hot, unlisted=unlisted)
    good = _check_values(folder, sound, f"{where}/", rows, report)
    store = Store(target, {name: folder})
    metadata = target.manifest["metadata"]
    report.run(f"{where}/{MANIFEST}", lambda: check_drafter(store, name, good, metadata, report))

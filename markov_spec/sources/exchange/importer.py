"""Import a store from JSON lines.

Every file is read twice: to find what is wrong before anything is written, and to write. In memory are the tokens and
prompts of the rollouts, which drafts are checked against, and a batch; drafts in another order than the rollouts are
held until their turn comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, TextColumn

from markov_spec.arrays import RequestError
from markov_spec.sources.exchange.building import DraftsFile, build
from markov_spec.sources.exchange.faults import Fault, LineError, Log, Mode, counted
from markov_spec.sources.exchange.headers import Header, read_drafts_header, read_rollouts_header
from markov_spec.sources.exchange.lines import Line, Moved, read_lines
from markov_spec.sources.exchange.names import Duplicates, check_policy, read_named
from markov_spec.sources.exchange.rows import Generated, read_draft, read_rollout
from markov_spec.sources.progress import progress_bars
from markov_spec.store import Store

_SHOWN = 5
_STEP_BYTES = 1 << 18


@dataclass(frozen=True, repr=False)
class ImportReport:
    """What an import wrote, and what was wrong or worth knowing.

    Parameters
    ----------
    store : Store
    errors : tuple of Fault
        What was wrong with the files, each with file, line, field and message; empty after a strict import.
    notes : tuple of str
        What was read in a way worth knowing, counted for each file.
    rollouts, tokens : int
        Written to the store.
    left_out : tuple of str
        Ids of the rollouts that are not in the store: their own line is at fault, or some drafter has no sound line
        for them. ``line N`` stands for one whose id could not be read.
    """

    store: Store
    errors: tuple[Fault, ...]
    notes: tuple[str, ...]
    rollouts: int
    tokens: int
    left_out: tuple[str, ...]

    def __repr__(self) -> str:
        rollouts, tokens = counted(self.rollouts, "rollout"), counted(self.tokens, "token")
        errors, notes = counted(len(self.errors), "error"), counted(len(self.notes), "note")
        names = ", ".join(self.store.drafters) or "none"
        left = f"{counted(len(self.left_out), 'rollout')} left out"
        return f"ImportReport({rollouts}, {tokens}, drafters: {names}; {errors}, {notes}, {left})"


def import_jsonl(
    rollouts: str | Path,
    drafts: Mapping[str, str | Path] | Sequence[str | Path],
    out: str | Path,
    *,
    mode: Mode = "strict",
    duplicates: Duplicates = "error",
    overwrite: bool = False,
    progress: bool = True,
) -> ImportReport:
    r"""Write a store from JSON lines of rollouts and of what drafters would have said.

    The format is in ``data/README.md``. Takes time linear in the bytes of the files, each read twice, and memory for
    the rollouts' tokens and prompts and one batch.

    Parameters
    ----------
    rollouts : path
        JSON lines; unpacked if the name ends in ``.gz``, as all files.
    drafts : mapping of str to path, or sequence of path
        A file for each drafter, by a name that replaces the file's own, or under its own.
    out : path
        The store to write.
    mode : {"strict", "lenient"}
        Strict: the first fault is raised and nothing is written. Lenient: a line that is at fault is left out and
        told, as is a rollout for which some drafter has no sound line, so that all drafters have the same rollouts; an
        unknown field is not read, and an unknown setting of ``sampling`` is kept. A first line at fault is raised, too.
    duplicates : {"error", "first", "last", "suffix"}
        What becomes of lines of one file with the same id: a fault (and none of them is read, unless they are the same
        to the byte), the first or the last is kept, or the later ones are named ``ID#2``, ``ID#3`` in the order of each
        file.
    overwrite : bool
        Replace the store that stands at ``out``.
    progress : bool
        Show progress bars on stderr.

    Returns
    -------
    ImportReport

    Raises
    ------
    LineError
        A ``ValueError`` whose ``fault`` names file, line and field.
    RequestError
        On an unknown mode or policy, or if ``out`` exists.
    OSError
        If a file cannot be opened.

    Examples
    --------
    >>> import json, pathlib, tempfile, markov_spec as ms
    >>> target = [{"format": "markov_spec rollouts", "version": 1, "logprob_space": "processed",
    ...     "sampling": {"temperature": 0.7}}, {"id": "a", "prompt_id": "p", "tokens": [5, 6], "log_p": [-0.5, -0.25]}]
    >>> small = [{"format": "markov_spec drafts", "version": 1, "name": "small", "kind": "autoregressive",
    ...     "rule": "rejection", "logprob_space": "processed", "sampling": None, "columns": {"log_q": []}},
    ...     {"id": "a", "log_q": [-9999.0, -1.5]}]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     root = pathlib.Path(folder)
    ...     for name, lines in (("rollouts", target), ("small", small)):
    ...         _ = (root / f"{name}.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    ...     report = ms.import_jsonl(root / "rollouts.jsonl", [root / "small.jsonl"], root / "store", progress=False)
    ...     print(report)
    ...     report.store.drafter("small").log_q
    ImportReport(1 rollout, 2 tokens, drafters: small; 0 errors, 1 note, 0 rollouts left out)
    array([-inf, -1.5], dtype=float32)
    """
    log, out, source = Log(mode), Path(out), Path(rollouts)
    check_policy(duplicates)
    if out.exists() and not overwrite:
        raise RequestError(f"{out}: exists; allowed: a new folder, or overwrite=True (--overwrite) to replace a store")
    given = [drafts] if isinstance(drafts, str | Path) else drafts
    named = given.items() if isinstance(given, Mapping) else [(None, path) for path in given]
    with _bars(progress) as moved:
        lines = read_lines(source, log, moved(source))
        header = read_rollouts_header(next(lines), log)
        known = read_named(lines, duplicates, log, lambda name, line: read_rollout(line, name, header, log).generated)
        drafters: list[DraftsFile] = []
        for name, path in named:
            drafters.append(_scan(Path(path), name, header, known, duplicates, log, moved(Path(path))))
            _check_new(drafters)
        for one in drafters:
            _check_covered(one, known, log)
        chosen = {name: g for name, g in known.items() if all(name in one.lines for one in drafters)}
        if not chosen and log.faults:
            raise LineError(log.faults[0])
        whole = len(chosen) == len(known) and not log.faulty(str(source))
        store = build(out, header, chosen, drafters, whole=whole, overwrite=overwrite, log=log, moved=moved)
    lost = *log.left_out(str(source)), *known
    left = tuple(name for name in dict.fromkeys(lost) if name not in chosen)
    tokens = sum(rollout.tokens.size for rollout in chosen.values())
    return ImportReport(store, tuple(log.faults), log.notes, len(chosen), tokens, left)


def _scan(
    path: Path,
    name: str | None,
    target: Header,
    known: Mapping[str, Generated],
    duplicates: Duplicates,
    log: Log,
    moved: Moved,
) -> DraftsFile:
    """Check a file of drafts, and note where each rollout stands in it."""
    lines = read_lines(path, log, moved)
    header = read_drafts_header(next(lines), name, target, log)

    def read(name: str, line: Line) -> int | None:
        if name not in known:
            if not log.faulty(target.line.file):
                raise line.error("id", f"found {name!r}; allowed: an id of {target.line.file}")
            log.tally(line.file, line.number, "line", f"of a rollout that was not read from {target.line.file}")
            return None
        read_draft(line, known[name], header, log)
        return line.number

    return DraftsFile(path, header, read_named(lines, duplicates, log, read))


def _check_new(drafters: Sequence[DraftsFile]) -> None:
    *earlier, new = drafters
    for one in earlier:
        if one.header.name == new.header.name:
            raise new.header.line.error("name", f"found {new.header.name!r} again; allowed: another than of {one.path}")


def _check_covered(one: DraftsFile, known: Mapping[str, Generated], log: Log) -> None:
    missing = [name for name in known if name not in one.lines]
    if not missing:
        return
    names = ", ".join(repr(name) for name in missing[:_SHOWN]) + ", ..." * (len(missing) > _SHOWN)
    found = f"found no sound line for {counted(len(missing), 'rollout')}: {names}"
    if log.faulty(str(one.path)):
        log.note(f"{one.path}: {found}; they were left out")
    else:
        log.error(LineError(Fault(str(one.path), None, "id", f"{found}; allowed: a line for each rollout")))


@contextmanager
def _bars(shown: bool) -> Iterator[Callable[[Path], Moved]]:
    """Give what makes a bar for a file, to be told the bytes that were read."""
    with progress_bars(shown, TextColumn("{task.description}"), BarColumn(), DownloadColumn()) as bars:

        def bar(path: Path) -> Moved:
            size = path.stat().st_size
            task, told = bars.add_task(path.name, total=size), 0

            def moved(place: int) -> None:
                nonlocal told
                if place - told >= _STEP_BYTES or place == size:
                    told = place
                    bars.update(task, completed=place)

            return moved

        yield bar

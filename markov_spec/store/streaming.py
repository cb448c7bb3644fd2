"""Writing a store batch by batch, in memory that does not grow with it."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from markov_spec.arrays import Array, Drafts, RequestError, Rollouts, as_float, check_indptr, locate
from markov_spec.arrays.recorded import half_float
from markov_spec.store.encode import DrafterFiles, TargetFiles, write_vocab
from markov_spec.store.files import check_text
from markov_spec.store.install import whole_folder
from markov_spec.store.manifest import MANIFEST, Fingerprint, write_manifest
from markov_spec.store.metadata import checked_metadata
from markov_spec.store.schema import STORE_FORMAT, check_name
from markov_spec.store.values import Columns


class StoreWriter:
    """Write a store batch by batch; ``write_store`` tells what each value is.

    A context manager: the store appears whole when the block ends, and not at all if it raises or is killed, as in
    ``write_store``. In memory are one row group (8 MB) of each part, one batch, and the rollout ids.

    Parameters
    ----------
    path : path-like
        The store's folder.
    metadata : mapping, optional
    vocab : mapping of int to str, optional
    overwrite : bool
        Replace the store, with its drafters, that stands at ``path``.

    Raises
    ------
    ValueError
        As ``write_store``, at the batch that is at fault. At the end of the block, if a drafter lacks rollouts or a
        batch was refused.

    Examples
    --------
    >>> import tempfile, numpy as np, markov_spec as ms
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ms.StoreWriter(f"{folder}/run") as writer:
    ...         for name in ("a", "b"):
    ...             writer.add_rollouts(rollout_ids=[name], prompt_ids=["p"], tokens=np.array([5, 6]), indptr=[0, 2],
    ...                 log_p=np.log([.5, .9]))
    ...             writer.add_drafts(ms.Drafts("small", "autoregressive", "rejection", np.log([.5, .8])))
    ...     ms.open_store(f"{folder}/run").rollouts()
    Rollouts(2 rollouts, 4 tokens, 1 prompt, benchmarks: all)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        metadata: Mapping[str, Any] | None = None,
        vocab: Mapping[int, str] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.path = Path(path).resolve()
        self._taken = None if overwrite else f"{self.path}: exists; pass overwrite=True to replace a store"
        _check_free(self.path, self._taken)
        self._metadata = checked_metadata(metadata or {})
        self._vocab = vocab
        self._state = "new"
        self._refused: BaseException | None = None
        self._places: dict[str, int] = {}
        self._ids: list[str] = []
        self._lengths = array("q")
        self._optional: list[str] | None = None
        self._fingerprint = Fingerprint()
        self._occurring: set[int] = set()
        self._drafters: dict[str, DrafterFiles] = {}

    def __enter__(self) -> StoreWriter:
        if self._state != "new":
            raise RequestError(f"{self.path}: this writer was used before; allowed: one block for each writer")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            self._folder = stack.enter_context(whole_folder(self.path, self._taken))
            (self._folder / "drafters").mkdir()
            self._target = TargetFiles(self._folder, self._metadata.get("vocab_size"), stack)
            self._stack = stack.pop_all()
        self._state = "open"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state = "closed"
        if error is not None:
            self._stack.__exit__(kind, error, trace)
            return
        with self._stack:
            if self._refused is not None:
                raise ValueError(f"{self.path}: not written, since a batch was refused: {self._refused}")
            self._finish()

    @contextmanager
    def _adding(self) -> Iterator[None]:
        if self._state != "open":
            begun = "has not begun" if self._state == "new" else "has ended"
            raise RequestError(
                f"{self.path}: found a writer whose with block {begun}; allowed: adding inside it, "
                "with ms.StoreWriter(...) as writer: ..."
            )
        try:
            yield
        except BaseException as error:
            self._refused = error
            raise

    def add_rollouts(
        self,
        *,
        rollout_ids: Sequence[str],
        prompt_ids: Sequence[str],
        tokens: Array,
        indptr: Array,
        log_p: Array,
        prompt_tokens: Sequence[Array] | None = None,
        benchmarks: Sequence[str] | None = None,
        finish_reasons: Sequence[str] | None = None,
        turns: Sequence[int] | None = None,
        parts: Mapping[str, Columns] | None = None,
    ) -> None:
        """Append rollouts. What the first batch leaves out, the others leave out, too.

        Parameters
        ----------
        rollout_ids, prompt_ids, tokens, indptr, log_p, prompt_tokens, benchmarks, finish_reasons, turns, parts
            As in ``write_store``, of this batch; ``indptr`` begins at 0. Ids are unique over all batches.

        Raises
        ------
        ValueError
            On values that ``write_store`` refuses, an id of an earlier batch, or columns unlike the first batch's.
        """
        given = {"prompt_tokens": prompt_tokens, "benchmarks": benchmarks, "finish_reasons": finish_reasons}
        with self._adding():
            self._check_optional([name for name, v in {**given, "turns": turns}.items() if v is not None])
            ids, count = self._new_ids(rollout_ids), check_indptr(indptr).size - 1
            benchmarks = ["all"] * count if benchmarks is None else benchmarks
            prompts = [np.zeros(0, dtype=np.int32)] * count if prompt_tokens is None else prompt_tokens
            rollouts = Rollouts(
                ids, prompt_ids, benchmarks, prompts, tokens, _rounded(log_p), indptr, finish_reasons, turns
            )
            _check_vocab_size(rollouts, self._metadata.get("vocab_size"))
            check_text(rollouts.ids, "rollout id")
            parts = parts or {}
            self._target.add(rollouts, parts)
            if (half := half_float(log_p)) is not None:
                self._metadata.setdefault("dtype", half)
            self._fingerprint.add(rollouts)
            self._note(rollouts.tokens, *rollouts.prompt_tokens, parts.get("lists", {}).get("ids", ()))
            self._ids += rollouts.ids
            self._lengths.extend(np.diff(rollouts.indptr).tolist())

    def add_drafts(self, drafts: Drafts) -> None:
        """Append drafts of the rollouts that come next for this drafter.

        Rollouts are added before their drafts; each drafter may be any number of them behind. The batches of a drafter
        need not be those of the rollouts.

        Parameters
        ----------
        drafts : Drafts
            Of whole rollouts. With ``ids``, they may stand in any order within the batch; without, its rows stand in
            the store's order; without ``indptr``, too, the batch ends before the next rollout that has a token. Name,
            kind, rule, depth, metadata and columns are those of the drafter's first batch.

        Raises
        ------
        ValueError
            On values that ``write_store`` refuses, other rollouts than those that come next, or a batch unlike the
            first one.
        """
        self._add(drafts, whole=False)

    def _add(self, drafts: Drafts, *, whole: bool) -> None:
        with self._adding():
            name = check_name(drafts.name)
            if name not in self._drafters:
                folder = self._folder / "drafters" / name
                folder.mkdir()
                self._drafters[name] = DrafterFiles(folder, name, self._stack)
            self._drafters[name].add(drafts, self._ids, self._lengths, whole=whole)
            self._note(drafts.parts.get("lists", {}).get("ids", ()))

    def _check_optional(self, given: list[str]) -> None:
        if self._optional is None:
            self._optional = given
        elif given != self._optional:
            found, allowed = (", ".join(names) or "no optional columns" for names in (given, self._optional))
            raise ValueError(f"rollouts: found {found}; allowed: {allowed}, as in the first batch")

    def _new_ids(self, rollout_ids: Sequence[str]) -> Sequence[str]:
        ids = tuple(rollout_ids)
        for i, name in enumerate(ids, len(self._ids)):
            if isinstance(name, str) and self._places.setdefault(name, i) != i:
                raise ValueError(
                    f"rollout ids: {name!r} stands at {self._places[name]} and again at {i}; ids are unique"
                )
        return ids

    def _note(self, *ids: Any) -> None:
        if self._vocab is not None:
            self._occurring.update(*(np.unique(np.asarray(own)).tolist() for own in ids))

    def _finish(self) -> None:
        mark = self._fingerprint.hexdigest()
        entries = self._target.finish()
        if self._vocab is not None:
            entries["vocab"] = write_vocab(self._folder, self._vocab, self._occurring)
        for drafter in self._drafters.values():
            drafter.finish(self._ids, mark)
        body = {"fingerprint": mark, "rollouts": len(self._ids), "positions": sum(self._lengths)}
        write_manifest(self._folder, STORE_FORMAT, {**body, "metadata": self._metadata, "parts": entries})


def _check_free(root: Path, taken: str | None) -> None:
    if not root.exists():
        return
    if taken is not None:
        raise ValueError(taken)
    if not (root / MANIFEST).is_file():
        raise ValueError(f"{root}: exists and is no store ({MANIFEST} is missing), so it is not replaced")


def _rounded(log_p: Any) -> Array:
    with np.errstate(over="ignore"):
        return as_float(log_p, "log_p").astype(np.float32)


def _check_vocab_size(rollouts: Rollouts, size: int | None) -> None:
    if size is None:
        return
    bad = rollouts.tokens >= size
    if bad.any():
        row = int(np.argmax(bad))
        where = locate(rollouts.indptr, row, rollouts.ids)
        raise ValueError(f"tokens: {where}: found {rollouts.tokens[row]}; allowed: below vocab_size {size}")
    for name, prompt in zip(rollouts.ids, rollouts.prompt_tokens, strict=True):
        if prompt.size and prompt.max() >= size:
            raise ValueError(
                f"prompt tokens: rollout {name!r}, position {int(prompt.argmax())}: found {prompt.max()}; "
                f"allowed: below vocab_size {size}"
            )

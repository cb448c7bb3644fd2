"""The folders of a store, the target's and the drafters', each with its manifest checked."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from markov_spec.store.folder import Folder
from markov_spec.store.install import vanished
from markov_spec.store.manifest import MANIFEST, Manifest, read_manifest
from markov_spec.store.schema import DRAFTER_FORMAT, DRAFTER_PARTS, STORE_FORMAT, TARGET_PARTS, check_name


def _manifest(folder: Path, form: str) -> Manifest:
    try:
        return read_manifest(folder, form)
    except ValueError as error:
        with suppress(OSError):
            for old in vanished(folder.parent, folder.name).values():
                found = f"an interrupted replacement left the old one at {old}"
                raise ValueError(f"{error}; markov-spec check --clean moves it back: {found}") from None
        raise


def target_folder(path: str | Path) -> Folder:
    """Read the target's manifest."""
    root = Path(os.path.realpath(path))
    return Folder(root, _manifest(root, STORE_FORMAT), TARGET_PARTS, "target")


def drafters_home(root: Path) -> Path:
    """Give the folder of a store's drafters; refuse what is no folder."""
    home = root / "drafters"
    if os.path.lexists(home) and not os.path.isdir(home):
        raise ValueError(f"{home}: is no folder; allowed: the folder of the drafters, or none")
    return home


def drafter_names(root: Path) -> list[str]:
    """Folders of drafters and those whose replacement was cut off; hidden ones and plain files are none."""
    home = drafters_home(root)
    try:
        found = [p.name for p in home.iterdir() if not p.name.startswith(".") and not p.is_file()]
        return sorted({*found, *(place.name for place in vanished(home))})
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"{home}: cannot be listed: {error}") from error


def drafter_folder(target: Folder, name: str) -> Folder:
    """Read a drafter's manifest; refuse one recorded against another target."""
    with target.reading():
        return _drafter_folder(target, name)


def _drafter_folder(target: Folder, name: str) -> Folder:
    try:
        check_name(name)
    except ValueError as error:
        raise ValueError(f"{target.root / 'drafters'}: {error}") from None
    folder = drafters_home(target.root) / name
    manifest, mark = _manifest(folder, DRAFTER_FORMAT), target.manifest["fingerprint"]
    if manifest["name"] != name:
        raise ValueError(f"{folder / MANIFEST}: found name {manifest['name']!r}; allowed: {name!r}, as the folder")
    if manifest["target_fingerprint"] != mark:
        raise ValueError(
            f"{folder / MANIFEST}: found target_fingerprint {manifest['target_fingerprint']}; allowed: {mark}: "
            f"drafter {name!r} was recorded against other rollouts"
        )
    return Folder(folder, manifest, DRAFTER_PARTS, f"drafter {name!r}", target)

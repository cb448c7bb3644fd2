"""Files of JSON lines, read a line at a time: what is no sound object is an error of its line.

A checksum, where a line has one, is the CRC-32 of the bytes before the last ``"crc32"`` of the line, which is its last
field; a file whose first line has one has them all.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markov_spec.sources.exchange.faults import Fault, LineError, Log, counted, shown

Moved = Callable[[int], object]
_SEAL = b'"crc32"'
_STATED = re.compile(rb"\s*:\s*(\d+)\s*\}")


class Constant:
    """``NaN`` or an infinity, which JSON does not have; no field allows it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Line:
    """One object of a file, where it stands, and a digest of its bytes."""

    file: str
    number: int
    values: dict[str, Any]
    digest: bytes

    def error(self, field: str, message: str) -> LineError:
        """Make an error of one field."""
        return LineError(Fault(self.file, self.number, field, message))

    def text(self, field: str, default: str | None = None) -> str:
        """Read a text that is not empty; without a default it must be there."""
        value = self.required(field) if default is None else self.values.get(field, default)
        if type(value) is not str or not value:
            raise self.error(field, f"found {shown(value)}; allowed: a text that is not empty")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(field, f"found {shown(value)}; allowed: text without lone surrogates") from None
        return value

    def integer(self, field: str, least: int, most: int) -> int | None:
        """Read an integer of a range; None where the field is absent."""
        value = self.values.get(field)
        if field in self.values and (type(value) is not int or not least <= value <= most):
            raise self.error(field, f"found {shown(value)}; allowed: an integer, {least} to {most}")
        return value

    def required(self, field: str) -> Any:
        """Give a field that must be there."""
        if field not in self.values:
            raise self.error(field, f"found nothing; the line has: {', '.join(self.values) or 'no field'}")
        return self.values[field]


def read_lines(path: Path, log: Log, moved: Moved = lambda place: None) -> Iterator[Line]:
    """Give the objects of a file, the header first; ``.gz`` is unpacked, a byte order mark and blank lines are skipped.

    Parameters
    ----------
    path : Path
    log : Log
        Told of a byte order mark, of lines that are no sound objects, and that the file cannot be read to its end.
    moved : callable
        Told the bytes of the file that have been read.

    Yields
    ------
    Line

    Raises
    ------
    LineError
        If there is no sound first line, or (strict) any line is wrong.
    OSError
        If the file cannot be opened.
    """
    header: Line | None = None
    number, count, sealed = 0, 0, False
    with path.open("rb") as raw:
        file = gzip.open(raw) if path.suffix == ".gz" else raw
        while True:
            number += 1
            try:
                text = file.readline()
            except (OSError, EOFError, zlib.error) as error:
                log.error(LineError(Fault(str(path), number, None, f"cannot be read from here on: {error}")))
                break
            moved(raw.tell())
            if not text:
                break
            if number == 1 and text.startswith(codecs.BOM_UTF8):
                log.note(f"{path}: begins with a byte order mark, which was skipped")
                text = text.removeprefix(codecs.BOM_UTF8)
            if not text.strip():
                continue
            count += header is not None
            try:
                line = _line(path, number, text, sealed)
            except LineError as error:
                if header is None:
                    raise
                log.error(error)
                log.leave_out(str(path), number)
                continue
            if header is None:
                header, sealed = line, "crc32" in line.values
            yield line
    if header is None:
        raise LineError(Fault(str(path), number, None, "found no line; allowed: a header, then an object a line"))
    _check_count(header, count, log)


def _line(path: Path, number: int, text: bytes, sealed: bool) -> Line:
    try:
        values = _parsed(text)
    except ValueError as error:
        cut = "" if text.endswith(b"\n") else "; the file ends in this line, without a line end: was it cut off?"
        raise LineError(Fault(str(path), number, None, f"{error}{cut}")) from None
    line = Line(str(path), number, values, hashlib.blake2b(text.strip(), digest_size=16).digest())
    _check_checksum(line, text, sealed)
    return line


def _check_count(header: Line, count: int, log: Log) -> None:
    stated = header.values.get("rollouts")
    if type(stated) is int and stated != count:
        fault = Fault(
            header.file, None, "rollouts", f"found {counted(count, 'line')}; allowed: {stated}, by the first line"
        )
        log.error(LineError(fault))


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text.decode(), parse_constant=Constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"found no JSON: {error}; allowed: one object") from None
    if type(found) is not dict:
        raise ValueError(f"found {shown(found)}; allowed: one JSON object")
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(n for n in names if names.count(n) > 1)!r} stands twice")
    return values


def checksum(body: bytes) -> int:
    """CRC-32 of the bytes of a line before its ``"crc32"``."""
    return zlib.crc32(body)


def _check_checksum(line: Line, text: bytes, sealed: bool) -> None:
    if "crc32" not in line.values:
        if sealed:
            raise line.error("crc32", "found nothing; allowed: a checksum on every line, as the first line has one")
        return
    body, _, rest = text.strip().rpartition(_SEAL)
    stated = _STATED.fullmatch(rest)
    if stated is None:
        raise line.error("crc32", f"found {shown(line.values['crc32'])}; allowed: an integer, the last field")
    if int(stated[1]) != checksum(body):
        raise line.error(
            "crc32",
            f"found {int(stated[1])}; the line gives {checksum(body)}: damaged, or edited (then remove crc32 from "
            "every line)",
        )

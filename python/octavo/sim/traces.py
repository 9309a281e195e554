"""Traces of real traffic, read as they were published.

A file is recognised by its columns. Whatever had to be assumed about it (units, block size,
columns that are not used) is said in `Trace.notes`. A row that cannot be understood is an error
with its file, line and reason; lengths are never cut.

Formats: Azure LLM inference CSV (2023), Mooncake JSONL (FAST'25), and Octavo's own CSV.
"""

from __future__ import annotations

import csv
import json
import math
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeGuard

from octavo._core import Workload
from octavo.errors import TraceError

__all__ = ["Trace", "read_trace"]

_MAX_TOKENS = 1 << 30
_MOONCAKE_BLOCK = 512
# Longer numbers are no lengths, and costly to read.
_DIGITS = 20

# Published formats that are not read yet, by the columns that give them away.
_LATER = {
    "Qwen-Bailian JSONL": {"chat_id", "timestamp"},
    "BurstGPT CSV": {"Timestamp", "Request tokens", "Response tokens"},
    "Vidur CSV": {"arrived_at", "num_prefill_tokens", "num_decode_tokens"},
    "Splitwise CSV": {"arrival_timestamp", "prompt_size", "token_size"},
}


@dataclass
class Trace:
    """The requests of a trace file, by column.

    Attributes:
        arrival_s: Arrivals in seconds, float64.
        prompt_tokens: Prompt lengths, uint32.
        output_tokens: Output lengths, uint32.
        prefix_ids: Names of what prompts share, int64: one a request, or all hash ids in order.
        prefix_tokens: How many tokens of its prefix each request begins with, uint32.
        hash_ends: Where each request's hash ids end in `prefix_ids`, uint64.
        block_tokens: Tokens that a hash id names; 0 where the trace has none.
        notes: What was recognised and assumed, one sentence each.
        dropped: Rows left out because they could not be read.
    """

    arrival_s: array[float] = field(default_factory=lambda: array("d"))
    prompt_tokens: array[int] = field(default_factory=lambda: array("I"))
    output_tokens: array[int] = field(default_factory=lambda: array("I"))
    prefix_ids: array[int] = field(default_factory=lambda: array("q"))
    prefix_tokens: array[int] = field(default_factory=lambda: array("I"))
    hash_ends: array[int] = field(default_factory=lambda: array("Q"))
    block_tokens: int = 0
    notes: list[str] = field(default_factory=list[str])
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.arrival_s)

    def workload(self) -> Workload:
        """Makes the workload that a simulation runs; its buffers are copies."""
        return Workload.from_columns(
            self.arrival_s.tobytes(),
            self.prompt_tokens.tobytes(),
            self.output_tokens.tobytes(),
            prefix_ids=self.prefix_ids.tobytes(),
            prefix_tokens=self.prefix_tokens.tobytes(),
            hash_ends=self.hash_ends.tobytes(),
            block_tokens=self.block_tokens,
        )


class _BadRow(ValueError):  # noqa: N818 - it never leaves this module
    """Why a row cannot be read."""


class _Format(Protocol):
    """One kind of trace: how a row becomes a request."""

    def add(self, row: Mapping[str, Any], trace: Trace) -> None:
        """Appends a row's request, or raises `_BadRow` and appends nothing."""
        ...


def read_trace(path: str | Path, *, skip_bad_rows: bool = False) -> Trace:
    """Reads a trace file.

    Args:
        path: The file.
        skip_bad_rows: Leaves rows out that cannot be read, counts them in `Trace.dropped` and says
            so in the notes, instead of raising.

    Raises:
        TraceError: The format is unknown or not read yet, a row cannot be read, or none is left.
        OSError: The file cannot be opened.
    """
    name = Path(path).name
    trace = Trace()
    first_bad: TraceError | None = None
    with Path(path).open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        columns, rows = _open_rows(file, name)
        reader = _recognise(name, columns, trace)
        for line, row in rows:
            reason = _add(reader, row, trace)
            if reason is None:
                continue
            bad = TraceError(name, line, reason)
            if not skip_bad_rows:
                raise bad
            first_bad = first_bad or bad
            trace.dropped += 1
    if first_bad is not None:
        trace.notes.append(f"{trace.dropped} rows dropped, the first: {first_bad}")
    if not trace:
        raise TraceError(name, None, "has no request")
    return trace


def _add(reader: _Format, row: Mapping[str, Any] | _BadRow, trace: Trace) -> str | None:
    """Adds a row; why it cannot be, where it cannot."""
    if isinstance(row, _BadRow):
        return str(row)
    try:
        reader.add(row, trace)
    except _BadRow as reason:
        return str(reason)
    return None


# --- rows -----------------------------------------------------------------------------------------


_Rows = Iterator[tuple[int, "Mapping[str, Any] | _BadRow"]]


def _open_rows(file: TextIO, name: str) -> tuple[set[str], _Rows]:
    """The columns of a file and its rows, each with its line number."""
    start = file.read(1)
    file.seek(0)
    if start == "{":
        rows = _json_rows(file)
        line, row = next(rows)
        if isinstance(row, _BadRow):
            raise TraceError(name, line, str(row))
        return set(row), chain([(line, row)], rows)
    table = csv.reader(file, strict=True)
    try:
        header = next(table, None)
    except csv.Error as error:
        raise TraceError(name, 1, str(error)) from None
    if not header:
        raise TraceError(name, None if header is None else 1, "has no header")
    if len(set(header)) < len(header):
        raise TraceError(name, 1, f"a column stands twice in {','.join(header)}")
    return set(header), _csv_rows(table, header)


def _json_rows(file: TextIO) -> _Rows:
    for line, text in enumerate(file, 1):
        if not text.strip():
            continue
        try:
            row = json.loads(text)
        except (ValueError, RecursionError) as error:
            yield line, _BadRow(f"is no JSON: {error}")
            continue
        yield line, row if isinstance(row, dict) else _BadRow("is no JSON object")


def _csv_rows(table: Any, header: list[str]) -> _Rows:
    while True:
        try:
            values = next(table)
        except StopIteration:
            return
        except csv.Error as error:
            yield table.line_num, _BadRow(str(error))
            continue
        if not values:
            continue
        if len(values) != len(header):
            reason = f"has {len(values)} values for {len(header)} columns"
            yield table.line_num, _BadRow(reason)
            continue
        yield table.line_num, dict(zip(header, values, strict=True))


# --- values ---------------------------------------------------------------------------------------


def _tokens(row: Mapping[str, Any], column: str, least: int = 1) -> int:
    """A number of tokens, as text in a CSV or as a number in JSON."""
    value = row[column]
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < _DIGITS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _BadRow(f"{column} is {value!r}, not a whole number")
    if not least <= value <= _MAX_TOKENS:
        raise _BadRow(f"{column} is {value}, not in {least} … 2^30")
    return value


def _seconds(row: Mapping[str, Any], column: str) -> float:
    """A time at or after 0, as text in a CSV or as a number in JSON."""
    value = row[column]
    if isinstance(value, bool) or (isinstance(value, str) and "_" in value):
        raise _BadRow(f"{column} is {value!r}, not a number")
    try:
        number = float(value)
    except (ValueError, TypeError):
        raise _BadRow(f"{column} is {value!r}, not a number") from None
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number >= 0):
        raise _BadRow(f"{column} is {value}, not a finite time at or after 0")
    return number


# --- formats --------------------------------------------------------------------------------------


class _Azure:
    """Azure LLM inference 2023: dates with seven fractional digits, and two lengths."""

    COLUMNS = frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"})
    USED = COLUMNS
    NOTE = "Azure LLM inference CSV: times are seconds since the first row, rows share no prefix"

    _DATE = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")

    def __init__(self, columns: set[str]) -> None:
        del columns
        self._start: int | None = None
        self._days: dict[str, int] = {}

    def add(self, row: Mapping[str, Any], trace: Trace) -> None:
        prompt = _tokens(row, "ContextTokens")
        output = _tokens(row, "GeneratedTokens")
        at = self._nanoseconds(row["TIMESTAMP"])
        start = at if self._start is None else self._start
        if at < start:
            raise _BadRow(f"TIMESTAMP {row['TIMESTAMP']} is before the first row's")
        self._start = start
        trace.arrival_s.append((at - start) / 1_000_000_000)
        trace.prompt_tokens.append(prompt)
        trace.output_tokens.append(output)

    def _nanoseconds(self, text: str) -> int:
        match = self._DATE.fullmatch(text)
        if match is None:
            raise _BadRow(f"TIMESTAMP is {text!r}, not a date and a time")
        day, hour, minute, second, fraction = match.groups()
        if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
            raise _BadRow(f"TIMESTAMP {text} has no such time of day")
        if day not in self._days:
            try:
                self._days[day] = date.fromisoformat(day).toordinal()
            except ValueError:
                raise _BadRow(f"TIMESTAMP {text} has no such day") from None
        whole = ((self._days[day] * 24 + int(hour)) * 60 + int(minute)) * 60 + int(second)
        return whole * 1_000_000_000 + int((fraction or "").ljust(9, "0"))


class _Mooncake:
    """Mooncake FAST'25: times in milliseconds, and a hash id for every 512 tokens of a prompt."""

    COLUMNS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})
    USED = COLUMNS
    NOTE = (
        "Mooncake JSONL: timestamps are milliseconds, a hash id names "
        f"{_MOONCAKE_BLOCK} tokens of a prompt"
    )

    def __init__(self, columns: set[str]) -> None:
        del columns

    def add(self, row: Mapping[str, Any], trace: Trace) -> None:
        missing = self.COLUMNS - row.keys()
        if missing:
            raise _BadRow(f"has no {', '.join(sorted(missing))}")
        prompt = _tokens(row, "input_length")
        output = _tokens(row, "output_length")
        arrival = _seconds(row, "timestamp") / 1000
        ids = row["hash_ids"]
        if not _is_list(ids):
            raise _BadRow(f"hash_ids is {ids!r}, not a list")
        _add_hash_ids(trace, ids, prompt, _MOONCAKE_BLOCK)
        trace.arrival_s.append(arrival)
        trace.prompt_tokens.append(prompt)
        trace.output_tokens.append(output)


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _add_hash_ids(trace: Trace, ids: list[Any], prompt: int, block_tokens: int) -> None:
    blocks = -(-prompt // block_tokens)
    if len(ids) > blocks:
        reason = f"has {len(ids)} hash_ids for {blocks} blocks of {block_tokens} tokens"
        raise _BadRow(reason)
    if trace.block_tokens not in {0, block_tokens}:
        raise _BadRow(f"has blocks of {block_tokens} tokens after blocks of {trace.block_tokens}")
    try:
        named = array("q", ids)
    except (TypeError, OverflowError):
        raise _BadRow("hash_ids are not all whole numbers of 64 bits") from None
    trace.block_tokens = block_tokens
    trace.prefix_ids.extend(named)
    trace.hash_ends.append(len(trace.prefix_ids))


class _Own:
    """Octavo's own CSV; what a run exports, and the easiest to write by hand."""

    COLUMNS = frozenset({"arrival_s", "prompt_tokens", "output_tokens"})
    USED = COLUMNS | {"prefix_id", "prefix_tokens", "hash_block_tokens", "hash_ids"}
    NOTE = "Octavo CSV: times are seconds"

    def __init__(self, columns: set[str]) -> None:
        self._has_prefix = self._pair(columns, "prefix_id", "prefix_tokens")
        self._has_hashes = self._pair(columns, "hash_block_tokens", "hash_ids")
        if self._has_prefix and self._has_hashes:
            raise _BadRow("has prefix_id and hash_ids: one of them says what prompts share")
        self._names: dict[str, int] = {}

    @staticmethod
    def _pair(columns: set[str], one: str, other: str) -> bool:
        if (one in columns) != (other in columns):
            there, missing = (one, other) if one in columns else (other, one)
            raise _BadRow(f"has {there} but no {missing}")
        return one in columns

    def add(self, row: Mapping[str, Any], trace: Trace) -> None:
        arrival = _seconds(row, "arrival_s")
        prompt = _tokens(row, "prompt_tokens")
        output = _tokens(row, "output_tokens")
        if self._has_prefix:
            self._add_prefix(row, trace, prompt)
        if self._has_hashes:
            ids = row["hash_ids"].split()
            if any(not name.removeprefix("-").isdecimal() for name in ids):
                raise _BadRow("hash_ids are not whole numbers between spaces")
            block_tokens = _tokens(row, "hash_block_tokens")
            _add_hash_ids(trace, [int(name) for name in ids], prompt, block_tokens)
        trace.arrival_s.append(arrival)
        trace.prompt_tokens.append(prompt)
        trace.output_tokens.append(output)

    def _add_prefix(self, row: Mapping[str, Any], trace: Trace, prompt: int) -> None:
        name = row["prefix_id"]
        tokens = 0
        if name or row["prefix_tokens"]:
            tokens = _tokens(row, "prefix_tokens", least=0)
        if tokens > prompt:
            raise _BadRow(f"prefix_tokens is {tokens}, more than the prompt's {prompt}")
        if tokens and not name:
            raise _BadRow(f"prefix_tokens is {tokens}, but prefix_id is empty")
        trace.prefix_ids.append(self._names.setdefault(name, len(self._names)) if tokens else 0)
        trace.prefix_tokens.append(tokens)


_FORMATS: tuple[type[_Azure | _Mooncake | _Own], ...] = (_Azure, _Mooncake, _Own)


def _recognise(name: str, columns: set[str], trace: Trace) -> _Format:
    """The format that has these columns; says in the notes what it assumes."""
    for later, signs in _LATER.items():
        if signs <= columns:
            raise TraceError(name, 1, f"is a {later}: this format comes later")
    known = [kind for kind in _FORMATS if columns >= kind.COLUMNS]
    if not known:
        raise TraceError(name, 1, _unknown(columns))
    kind = known[0]
    try:
        reader = kind(columns)
    except _BadRow as reason:
        raise TraceError(name, 1, str(reason)) from None
    trace.notes.append(kind.NOTE)
    unused = sorted(columns - kind.USED)
    if unused:
        trace.notes.append(f"columns not used: {', '.join(unused)}")
    return reader


def _unknown(columns: set[str]) -> str:
    """Why no format fits: the columns missing from the nearest one, or what is read at all."""
    nearest = max(_FORMATS, key=lambda kind: len(kind.COLUMNS & columns))
    missing = sorted(nearest.COLUMNS - columns)
    if len(missing) < len(nearest.COLUMNS):
        return f"has no column {', '.join(missing)}"
    read = "; ".join(",".join(sorted(kind.COLUMNS)) for kind in _FORMATS)
    return f"has columns of no known trace: {','.join(sorted(columns))} (known: {read})"

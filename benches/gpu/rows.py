"""What a section has found: a row a figure or check, on a line of JSON each, and as a table."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

# Units that a prefix stands before; other words stand apart.
_PREFIXED = ("B", "B/s", "FLOP/s", "s")
HEAD = ("work", "figure", "beside", "ratio", "aim", "")


@dataclass(frozen=True)
class Row:
    """A figure or a check.

    Attributes:
        work: What was done, with its shape.
        value: The figure in `unit`; None for a check.
        unit: Such as B/s, FLOP/s, s, tokens/s.
        spread: Half the distance of the quartiles, as a share of the median.
        peer: What it stands beside, in words.
        ratio: The figure over the peer's: more is better.
        aim: What the ratio should be at least.
        note: What else there is to say.
    """

    work: str
    value: float | None = None
    unit: str = ""
    spread: float | None = None
    peer: str = ""
    ratio: float | None = None
    aim: float | None = None
    note: str = ""

    def line(self):
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, line):
        return cls(**json.loads(line))

    @property
    def is_below(self):
        return None not in (self.ratio, self.aim) and self.ratio < self.aim

    def cells(self):
        gap = "" if self.unit in _PREFIXED else " "
        figure = "" if self.value is None else f"{scaled(self.value)}{gap}{self.unit}"
        figure = " ".join(figure.split())
        if self.spread is not None:
            figure += f" ± {self.spread:.0%}"
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}"
        aim = "" if self.aim is None else f"{self.aim:.2f}"
        note = "; ".join(filter(None, ("below the aim" if self.is_below else "", self.note)))
        return self.work, figure, self.peer, ratio, aim, note


def scaled(value):
    """Three digits and a prefix: 4.12 T for 4.12e12."""
    prefixes = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"), (1e-6, "µ"))
    for factor, prefix in prefixes:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def table(titled):
    """The rows of sections as text: pairs of a title and its rows."""
    figures = [row.cells() for _, rows in titled for row in rows if row.value is not None]
    widths = [max(map(len, column)) for column in zip(HEAD, *figures, strict=True)]
    lines = [_joined(HEAD, widths)]
    for title, rows in titled:
        lines += ["", f"[{title}]"]
        for row in rows:
            facts = row.work, row.note
            lines.append(_joined(row.cells() if row.value is not None else facts, widths))
    return "\n".join(lines)


def _joined(cells, widths):
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)).rstrip()

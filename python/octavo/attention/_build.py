"""The kernels' source text, as a compiler gets it: one string, with what it includes written in.

A compiler at run time knows no folder of ours, and CuPy's cache of compiled kernels goes by the
text it is given: a header that it cannot see could change unnoticed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

__all__ = ["source"]

_FOLDER = Path(__file__).parent / "cuda"
_OURS = re.compile(r'^#include "([^"]+)"$')


@cache
def source(name: str) -> str:
    """A file of `cuda/`, each header of ours in its place, once; lines keep their numbers.

    Example:
        >>> "#include <cuda_fp16.h>" in source("append.cu")
        True
    """
    return "\n".join(_lines(name, set())) + "\n"


def _lines(name: str, seen: set[str]) -> list[str]:
    seen.add(name)
    text = (_FOLDER / name).read_text(encoding="utf-8")
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(text.splitlines(), start=1):
        found = _OURS.match(line)
        if found is None:
            lines.append(line)
        elif found[1] not in seen:
            lines += [*_lines(found[1], seen), f'#line {number + 1} "{name}"']
        else:
            lines.append("")
    return lines

"""What a section runs on: a card through CuPy, or a back end over NumPy that stands in for one.

    python SECTION.py [--out FILE] [--backend MODULE:ATTRIBUTE] [--tiny] [--few] [--no-pool]

`--backend` names what makes a back end from its options; its launcher's arrays are NumPy's then,
and times say nothing. `--tiny` takes small shapes, `--few` a pair of dtypes of each kind.
`--no-pool` gives each array memory of its own, so that a sanitizer sees where it ends. A section
yields rows; each is written when it is known, so that a section that is cut short has told what it
had.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Machine:
    """What a section runs on.

    Attributes:
        make: Makes a back end from its options, such as `decode_on`.
        xp: Whose arrays it takes: CuPy, or NumPy for a dry run.
        is_tiny: Whether shapes are small.
        is_few: Whether one pair of dtypes of each kind will do.
    """

    make: Any
    xp: Any
    is_tiny: bool
    is_few: bool = False

    @property
    def is_card(self):
        return self.xp is not np

    @property
    def half(self):
        """The 16-bit type of figures: bfloat16 needs ml_dtypes."""
        return "bfloat16" if importlib.util.find_spec("ml_dtypes") else "float16"

    @property
    def pairs(self):
        """What a model computes in and what its memory holds, as far as this machine can."""
        from octavo.attention.kernels import PAIRS  # noqa: PLC0415 - after the words were read

        others = {"float16", "bfloat16"} - {self.half}
        if self.half == "bfloat16" and not self.is_few:
            others = set()
        return [pair for pair in PAIRS if not others & {*pair}]

    def size(self, full, tiny):
        """One or the other."""
        return tiny if self.is_tiny else full

    def host(self, array):
        """An array as NumPy's."""
        return self.xp.asnumpy(array) if self.is_card else array

    def synchronize(self):
        if self.is_card:
            self.xp.cuda.Device().synchronize()


def _on_card():
    """A maker of back ends that share one launcher, and with it what was compiled."""
    from octavo.attention.gpu import CupyLauncher  # noqa: PLC0415 - CuPy, where there is one
    from octavo.attention.kernel_backend import KernelBackend  # noqa: PLC0415 - as above

    launcher = CupyLauncher()
    return lambda **options: KernelBackend(launcher, **options)


def from_words(words=None):
    """The machine that the command's words describe, and where rows go."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--backend")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--no-pool", action="store_true")
    given = parser.parse_args(words)
    if given.backend is None:
        make = _on_card()
    else:
        module, _, attribute = given.backend.partition(":")
        make = getattr(importlib.import_module(module), attribute)
    xp = make().launcher.xp
    if given.no_pool and xp is not np:
        xp.cuda.set_allocator(None)
    return Machine(make, xp, given.tiny, given.few), given.out


def run(section):
    """Runs a section as a command: a function from a machine to its rows."""
    try:
        machine, out = from_words()
    except ImportError as error:
        # What is missing on this machine says so itself.
        print(f"benches/gpu: {error}", file=sys.stderr)
        sys.exit(2)
    with out.open("w", encoding="utf-8") if out else sys.stdout as file:
        for row in section(machine):
            print(row.line(), file=file, flush=True)

"""A back end for benches/gpu where there is no card: the reference, which is right and slow.

`backend` takes the options of the kernels' back end and heeds none; `broken` is wrong, `slow` is
late.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np

from octavo.attention import reference


class Reference:
    """The reference with what only the kernels' back end has: a launcher, `out`, `prepare`."""

    def __init__(self, **_options):
        self.launcher = SimpleNamespace(xp=np, is_capturing=False)

    def __getattr__(self, name):
        return getattr(reference, name)

    def prepare(self, *_args, **_options):
        pass

    def decode(self, *args, out=None, **options):
        return self._into(out, reference.decode(*args, **options))

    def prefill(self, *args, out=None, **options):
        return self._into(out, reference.prefill(*args, **options))

    @staticmethod
    def _into(out, found):
        if out is not None:
            out[...] = found
        return found


class Broken(Reference):
    """As above, but for one element of a decode."""

    def decode(self, *args, out=None, **options):
        found = super().decode(*args, out=out, **options)
        values = found[0] if isinstance(found, tuple) else found
        if values.size > 5:
            values.reshape(-1)[5] += 0.125
        return found


class Slow(Reference):
    """As the reference, but for a decode that hardly ends."""

    def decode(self, *_args, **_options):
        time.sleep(600)


backend = Reference
broken = Broken
slow = Slow

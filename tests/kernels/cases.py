"""Shapes for tests over the catalogue: dtypes, head dims and groups, and the rest in turn."""

import itertools
from typing import NamedTuple

import pytest

# 1 and 256 are the limits; 3 and 24 divide nothing.
SIZES = itertools.cycle([16, 1, 64, 3, 256, 24])
LAYOUTS = itertools.cycle(["NHD", "HND"])
WINDOWS = itertools.cycle([None, 5, 129])


class Case(NamedTuple):
    """What one test is made with."""

    pair: tuple[str, str]
    dim: int
    group: int
    size: int
    layout: str
    window: int | None


def cases(pairs, dims, groups):
    """Each of them, with block sizes, layouts and windows in turn."""
    return [
        pytest.param(
            Case(*each, next(SIZES), next(LAYOUTS), next(WINDOWS)), id="-".join(map(str, each))
        )
        for each in itertools.product(pairs, dims, groups)
    ]

"""`step` + `commit` of a decoding batch as Python sees it: prompts of 512, blocks of 16."""

import pytest

from inputs import Shape

SHAPES = [
    *(Shape(rows, fill) for rows in (256, 1_024, 4_096) for fill in ("fresh", "full")),
    *(Shape(256, fill, pool) for pool in (10_000, 1_000_000) for fill in ("fresh", "full")),
    *(Shape(256, waiting=waiting) for waiting in (100, 100_000)),
]


@pytest.mark.parametrize("engine", SHAPES, indirect=True, ids=str)
def test_step_commit(benchmark, engine, quick):
    steps = min(engine.steps_left, 200 if quick else 700)
    warming = steps // 7
    benchmark.pedantic(engine.round, rounds=steps - warming, warmup_rounds=warming)
    assert engine.sched.stats().running == engine.rows

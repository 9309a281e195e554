"""`step` + `commit` of a decoding batch as Python sees it: prompts of 512, blocks of 16."""

import pytest

SHAPES = [(rows, fill) for rows in (256, 1_024, 4_096) for fill in ("fresh", "full")]


@pytest.mark.parametrize(
    "engine", SHAPES, indirect=True, ids=[f"{rows}_{fill}" for rows, fill in SHAPES]
)
def test_step_commit(benchmark, engine):
    benchmark.pedantic(engine.round, rounds=600, warmup_rounds=100)
    assert engine.sched.stats().running == engine.rows

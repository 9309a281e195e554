"""Samplers: seeded by position, the right distribution, and nothing from what is cut off."""

import numpy as np
import pytest

import octavo
from octavo.model import Sampling, sample, sequence_seed, uniform
from support.llamas import chi_square

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15]))
# The value that chance passes once in 10^4, for 1 … 4 degrees of freedom.
RARE = {1: 15.1, 2: 18.4, 3: 21.1, 4: 23.5}


def counts(sampling, draws=20_000, logits=LOGITS):
    rows = np.broadcast_to(logits, (draws, len(logits)))
    tokens = sample(rows, [sampling] * draws, np.arange(draws))
    return np.bincount(tokens, minlength=len(logits))


def shares(temperature=1.0):
    raised = np.exp(LOGITS / temperature)
    return raised / raised.sum()


def test_greedy_takes_the_largest_and_the_first_of_equals():
    logits = np.array([[0.0, 2.0, 2.0], [5.0, 1.0, 1.0]])
    assert sample(logits, [Sampling()] * 2, [0, 0]).tolist() == [1, 0]
    assert sample(logits, [Sampling()] * 2, [0, 0]).dtype == np.int32


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_gives_the_distribution(temperature):
    found = counts(Sampling(temperature=temperature, seed=3))
    assert chi_square(found, shares(temperature)) < RARE[4]


def test_top_k_keeps_the_largest():
    found = counts(Sampling(temperature=1.0, top_k=3, seed=4))
    assert found[[0, 2]].sum() == 0
    assert chi_square(found[[1, 3, 4]], shares()[[1, 3, 4]]) < RARE[2]


@pytest.mark.parametrize(("top_p", "kept"), [(0.3, [1]), (0.69, [1, 3]), (0.71, [1, 3, 4])])
def test_top_p_keeps_the_fewest_that_reach_it(top_p, kept):
    found = counts(Sampling(temperature=1.0, top_p=top_p, seed=5))
    assert set(np.flatnonzero(found)) == set(kept)
    if len(kept) > 1:
        assert chi_square(found[kept], shares()[kept]) < RARE[len(kept) - 1]


def test_top_p_counts_what_top_k_left():
    # Of 0.4 and 0.3 the first alone has 0.57.
    found = counts(Sampling(temperature=1.0, top_k=2, top_p=0.57, seed=6))
    assert set(np.flatnonzero(found)) == {1}


def test_a_row_does_not_depend_on_its_batch():
    draws = np.random.default_rng(0)
    logits = draws.standard_normal((40, 30))
    samplings = [
        Sampling(float(i % 3), top_k=i % 7, top_p=(0.5, 1.0)[i % 2], seed=i) for i in range(40)
    ]
    together = sample(logits, samplings, np.arange(40))
    alone = [int(sample(logits[i : i + 1], [samplings[i]], [i])[0]) for i in range(40)]
    assert together.tolist() == alone


def test_numbers_depend_on_seed_and_position_only():
    one = uniform([7, 8, 7], [3, 3, 4])
    assert uniform([7], [3]) == one[0]
    assert len(set(one)) == 3
    assert uniform([2**64 - 1], [2**31 - 1]) < 1


def test_numbers_are_even_and_independent_of_their_neighbours():
    grid = uniform(np.repeat(np.arange(200, dtype=np.uint64), 200), np.tile(np.arange(200), 200))
    grid = grid.reshape(200, 200)
    assert chi_square(np.histogram(grid, bins=5, range=(0, 1))[0], [1] * 5) < RARE[4]
    for other in (np.roll(grid, 1, axis=0), np.roll(grid, 1, axis=1)):
        assert abs(np.corrcoef(grid.ravel(), other.ravel())[0, 1]) < 0.02


def test_numbers_are_the_same_on_every_machine():
    assert uniform([0, 1, 2**63], [0, 5, 9]).tolist() == pytest.approx(NUMBERS, abs=0)


NUMBERS = [0.6524484863740322, 0.7743991716672016, 0.384167022766463]


def test_sequences_of_a_request_have_seeds_of_their_own():
    seeds = {sequence_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2_500
    assert sequence_seed(9, 0) == 9
    assert Sampling(1.0, 2, 0.5, 9).of(1) == Sampling(1.0, 2, 0.5, sequence_seed(9, 1))


def test_tiny_temperatures_are_greedy():
    for temperature in (1e-3, 1e-30, 1e-308):
        assert counts(Sampling(temperature=temperature), 50).tolist() == [0, 50, 0, 0, 0]


def test_minus_infinity_is_never_drawn():
    logits = np.array([-np.inf, 0.0, -np.inf, 1.0, -np.inf])
    found = counts(Sampling(temperature=5.0, top_k=5, top_p=0.999), 2_000, logits)
    assert set(np.flatnonzero(found)) == {1, 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused_by_row(bad):
    logits = np.zeros((3, 4))
    logits[1, 2] = bad
    with pytest.raises(octavo.RequestError, match="logits: row 1 has NaN"):
        sample(logits, [Sampling()] * 3, [0, 0, 0])
    with pytest.raises(octavo.RequestError, match="row 0"):
        sample(np.full((1, 4), -np.inf), [Sampling()], [0])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_settings_outside_their_range_are_refused_by_field(changes, field):
    with pytest.raises(octavo.ConfigError) as caught:
        Sampling(**changes)
    assert caught.value.field == field

"""10,000 prompts of 256 tokens in one call, a NumPy array each: copied, checked and hashed."""

import octavo
from inputs import tokens

PROMPTS, LENGTH = 10_000, 256


def test_storm(benchmark, quick):
    prompts = list(tokens(20, PROMPTS * LENGTH).reshape(PROMPTS, LENGTH))

    def fresh():
        return (octavo.Scheduler(50_000),), {}

    def add(sched):
        sched.add_many(prompts, max_tokens=100)
        assert sched.stats().waiting == PROMPTS

    benchmark.pedantic(add, setup=fresh, rounds=7 if quick else 31, warmup_rounds=2)

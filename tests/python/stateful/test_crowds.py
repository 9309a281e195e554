"""Random crowds: many requests that grow into each other, many blocks that come and go.

The state machines look everywhere in tiny worlds; these runs stay where preemptions, resumes and
capacity ends are frequent, or where hundreds of cached blocks are claimed and let go. Each seed is
one run, told to the package and to its naive twin and compared after every call; the Hypothesis
profile says how many there are.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from hypothesis import settings

from support.cache_pair import CachePair
from support.scheduler_pair import SchedulerPair


def _crowd(random: Random) -> tuple[int, dict[str, Any]]:
    options = {
        "block_size": random.randint(1, 4),
        "max_num_seqs": random.randint(2, 5),
        "max_num_batched_tokens": random.randint(2, 12),
        "max_model_len": 24,
        "max_partial_prefills": random.randint(1, 3),
        "long_prefill_threshold": random.choice([0, 0, 2, 5]),
        "watermark": random.choice([0.0, 0.0, 0.25]),
        "prefix_caching": random.random() < 0.8,
        "inflight_steps": random.choice([1, 1, 2, 3]),
        "dedupe": random.random() < 0.7,
    }
    return random.randint(4, 12), options


def _add_some(pair: SchedulerPair, random: Random, now: float) -> None:
    for _ in range(random.randint(0, 3)):
        length = random.randint(1, 8)
        prompt = [int(random.random() < 0.15) for _ in range(length)]
        arrival = random.choice([None, None, None, now - 3.0])
        use_cache = random.random() < 0.9
        n, max_tokens = random.choice([1, 1, 1, 2]), random.randint(2, 12)
        pair.add(prompt, max_tokens=max_tokens, n=n, arrival=arrival, use_cache=use_cache)


def _run(seed: int) -> Counter[str]:
    random = Random(seed)  # noqa: S311 - a seed, not a secret
    num_blocks, options = _crowd(random)
    pair = SchedulerPair(num_blocks, hashing={"hash_seed": seed}, taste=seed, **options)
    now = 0.0
    for _ in range(random.randint(2, 6)):
        _add_some(pair, random, now)
        for _ in range(random.randint(1, 8)):
            now = _step(pair, random, now)
    for _ in range(2_000):
        if not pair.real.has_work:
            break
        now = _step(pair, random, now)
    assert not pair.real.has_work, "L11: every request ends in a bounded number of steps"
    assert pair.step(now + 1.0).value is None
    stats = pair.real.stats()
    assert stats.available == stats.usable, "at idle every block is available"
    counts = {"preemptions": stats.preemptions, "resumed_hits": stats.resumed_hits}
    return Counter({name: int(count > 0) for name, count in counts.items()})


def _step(pair: SchedulerPair, random: Random, now: float) -> float:
    now += random.choice([0.0, 1.0])
    plan = pair.step(now).value
    if plan is not None:
        pair.check_mirror()
    if pair.requests and random.random() < 0.05:
        pair.on(random.choice(["abort", "finish"]), random.choice(pair.seqs))
    if pair.out and (plan is None or random.random() < 0.5):
        assert pair.commit().error is None
        pair.check_truth()
    return now


def test_crowds_end_alike_in_package_and_twin() -> None:
    num_runs = settings().max_examples
    seen: Counter[str] = Counter()
    for seed in range(num_runs):
        seen += _run(seed)
    assert seen["preemptions"] > num_runs / 5
    assert seen["resumed_hits"] > 0


def _churn(seed: int) -> int:
    """Closes many chains under open steps, claims most of them again, and evicts in between."""
    random = Random(seed)  # noqa: S311 - a seed, not a secret
    pair = CachePair(160, random.randint(1, 2), hash_seed=seed)
    chains = [[index, *[random.randint(0, 1) for _ in range(5)]] for index in range(60)]
    steps: list[int] = []
    for _ in range(5):
        for chain in random.sample(chains, 30):
            pair.open([*chain, 9])
            seq = pair.live[-1]
            if pair.on("reserve", seq, len(chain)).error is None:
                pair.on("advance", seq, chain[pair.real.num_computed(seq) :])
            if random.random() < 0.9:
                pair.close(seq)
        while len(pair.live) > 3:
            pair.close(random.choice(pair.live))
        steps.append(pair.whole("begin_step").value)
        if len(steps) > 2:
            pair.whole("end_step", steps.pop(0))
    for step in steps:
        pair.whole("end_step", step)
    return pair.real.stats().evicted_blocks


def test_churn_keeps_the_order_of_eviction_in_package_and_twin() -> None:
    num_runs = max(2, settings().max_examples // 50)
    assert sum(_churn(seed) for seed in range(num_runs)) > 100 * num_runs

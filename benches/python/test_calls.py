"""What a call costs beyond its work: the shortest calls of each face."""

import octavo

CALLS = 1_000


def test_cache_call(benchmark):
    cache = octavo.KVCache(1_000)
    seq = cache.open()

    def ask():
        for _ in range(CALLS):
            cache.can_reserve(seq, 1)

    benchmark.extra_info["calls"] = CALLS
    benchmark(ask)


def test_scheduler_call(benchmark):
    scheduler = octavo.Scheduler(1_000)
    request = scheduler.add([1], max_tokens=1)
    scheduler.abort(request)

    def ask():
        for _ in range(CALLS):
            scheduler.abort(request)

    benchmark.extra_info["calls"] = CALLS
    benchmark(ask)


def test_refused_step(benchmark):
    scheduler = octavo.Scheduler(1_000)
    scheduler.add([1], max_tokens=2)
    plan = scheduler.step(0.0)

    def ask():
        for _ in range(CALLS):
            scheduler.step(0.0)

    benchmark.extra_info["calls"] = CALLS
    benchmark(ask)
    scheduler.commit(plan, [1])

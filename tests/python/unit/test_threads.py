"""Adding and aborting from several threads while one steps."""

import threading

import numpy as np

import octavo


def test_requests_come_from_four_threads_while_one_steps():
    scheduler = octavo.Scheduler(256, block_size=4, max_model_len=64, max_num_seqs=16)
    requests: list[int] = []
    failures: list[BaseException] = []
    start = threading.Barrier(5)

    def feed(thread: int) -> None:
        try:
            start.wait()
            for i in range(50):
                request = scheduler.add(np.arange(1 + (i % 9)) + thread, max_tokens=3)
                requests.append(request)
                if i % 10 == 9:
                    scheduler.abort(request)
                assert scheduler.stats().num_blocks == 256
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=feed, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    ended = 0
    now = 0.0
    while any(thread.is_alive() for thread in threads) or scheduler.has_work:
        now += 1.0
        plan = scheduler.step(now)
        if plan is not None:
            ended += len(scheduler.commit(plan, np.ones(len(plan.sample), np.int32)).finished)
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(requests)) == ended == 200
    scheduler.step(now)
    scheduler.audit()
    assert scheduler.stats().held == 0


def test_a_cache_is_shared_by_threads():
    cache = octavo.KVCache(256, 4)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for i in range(100):
                seq = cache.open(range(thread, thread + 9))
                cache.reserve(seq, 12)
                cache.advance(seq, np.arange(12 - cache.num_computed(seq)))
                child = cache.fork(seq)
                cache.truncate(child, i % 12)
                cache.close(seq)
                cache.close(child)
        except BaseException as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    cache.audit()
    assert cache.stats().held == 0

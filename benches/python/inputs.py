"""Seeded inputs, the same as in `benches/rust/support`, and engines in a steady state."""

from dataclasses import dataclass, field

import numpy as np

import octavo

VOCABULARY = 32_000
BLOCK_SIZE = 16
PROMPT = 512
# Decode steps that a shape leaves room for, and those that go by until every row decodes.
STEPS = 1_024
STARTING = 64

PLAN_ARRAYS = (
    "seqs",
    "rows",
    "num_tokens",
    "query_start",
    "token_ids",
    "positions",
    "slot_mapping",
    "seq_lens",
    "sample",
    "sample_seqs",
    "sample_indptr",
    "table_changes",
    "copies",
)


def draw(seed, count):
    """The first `count` values of the stream of `seed` (SplitMix64, by counter)."""
    mixed = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(
        0x9E37_79B9_7F4A_7C15
    )
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return mixed ^ (mixed >> np.uint64(31))


def tokens(seed, count):
    return (draw(seed, count) % np.uint64(VOCABULARY)).astype(np.int32)


def shuffled(seed, count):
    """The numbers 0 .. count in an order that depends on `seed` only."""
    order = list(range(count))
    values = draw(seed, count)
    for last in range(count - 1, 0, -1):
        other = int(values[last]) % (last + 1)
        order[last], order[other] = order[other], order[last]
    return order


def mixed_cache(num_blocks):
    """An allocator whose blocks were all used, freed and mixed, and are blank again."""
    cache = octavo.KVCache(num_blocks, BLOCK_SIZE)
    sizes = draw(1, num_blocks)
    opened, left = [], num_blocks
    while left > 0:
        blocks = min(left, 1 + int(sizes[left - 1]) % 31)
        seq = cache.open()
        cache.reserve(seq, blocks * BLOCK_SIZE)
        opened.append(seq)
        left -= blocks
    for at in shuffled(2, len(opened)):
        cache.close(opened[at])
    return cache


def full_cache(num_blocks, chain):
    """The same, full of cached chains of `chain` blocks each, and the seeds of their tokens."""
    cache = mixed_cache(num_blocks)
    seeds = [1_000_000 + at for at in range(num_blocks // chain)]
    for seed in seeds:
        seq = cache.open()
        cache.reserve(seq, chain * BLOCK_SIZE)
        cache.advance(seq, tokens(seed, chain * BLOCK_SIZE))
        cache.close(seq)
    return cache, seeds


@dataclass(frozen=True)
class Shape:
    """What an engine runs, and in how large a memory: its own size without `num_blocks`."""

    rows: int
    fill: str = "fresh"
    num_blocks: int | None = None
    waiting: int = 0

    def __str__(self):
        """Its name in the budgets."""
        pool = f"_pool_{self.num_blocks}" if self.num_blocks else ""
        waiting = f"_waiting_{self.waiting}" if self.waiting else ""
        return f"{self.rows}_{self.fill}{pool}{waiting}"


@dataclass
class Engine:
    """A scheduler all of whose rows decode; a pool that is `full` is full of cached blocks."""

    shape: Shape
    sched: octavo.Scheduler = field(init=False)
    next_seed: int = 10_000_000

    def __post_init__(self):
        self.rows = self.shape.rows
        own = self.rows * -(-(PROMPT + STEPS + STARTING) // BLOCK_SIZE)
        self.num_blocks = self.shape.num_blocks or own
        # The same for all sizes of a pool, and long enough that its rows can fill the largest.
        self.max_model_len = 1 << 17 if self.shape.num_blocks else 4_096
        room = self.num_blocks // self.rows * BLOCK_SIZE
        self.steps_left = min(room, PROMPT + STEPS) - PROMPT - STARTING
        self.sched = octavo.Scheduler(
            self.num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=self.rows,
            max_num_batched_tokens=65_536,
            max_model_len=self.max_model_len,
            max_partial_prefills=64,
            watermark=0.0,
        )
        self.sampled = tokens(3, self.rows)
        self._mix_blocks()
        if self.shape.fill == "full":
            self._fill_with_cached()
        self._start_rows()

    def round(self):
        """One step and its commit, all arrays of the plan asked for: what is measured."""
        plan = self.sched.step(0.0)
        for name in PLAN_ARRAYS:
            getattr(plan, name)
        self.sched.commit(plan, self.sampled[: len(plan.sample_seqs)])

    def _add(self, length, max_tokens, *, use_cache=True):
        self.next_seed += 1
        prompt = tokens(self.next_seed, length)
        return self.sched.add(prompt, max_tokens=max_tokens, use_cache=use_cache)

    def _mix_blocks(self):
        lengths = 1 + draw(4, self.rows) % np.uint64(PROMPT)
        longest = self.max_model_len
        requests = [self._add(int(length), longest, use_cache=False) for length in lengths]
        while self.sched.stats().available >= self.rows:
            self.round()
        for at in shuffled(6, self.rows):
            self.sched.abort(requests[at])
        self.round()
        assert self.sched.stats().blank == self.num_blocks

    def _fill_with_cached(self):
        blocks_each = 128
        for _ in range(self.num_blocks // blocks_each):
            self._add(blocks_each * BLOCK_SIZE, 0)
        while self.sched.has_work:
            self.round()

    def _start_rows(self):
        for row in range(self.rows):
            # Not all at the same place of a block: every step fills some.
            self._add(PROMPT - row % BLOCK_SIZE, self.max_model_len)
        num_decodes = 0
        while num_decodes < self.rows:
            plan = self.sched.step(0.0)
            num_decodes = plan.num_decodes
            self.sched.commit(plan, self.sampled[: len(plan.sample_seqs)])
        if self.shape.waiting:
            self.sched.add_many([[1]] * self.shape.waiting, max_tokens=1)

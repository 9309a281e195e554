"""Settings as values: what a `Scheduler` or a `KVCache` is built from.

They hold what they are given. The core checks it when the object is built, and refuses by field,
value and range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["KVGroup", "SchedulerConfig"]


@dataclass(frozen=True)
class KVGroup:
    """Layers that share one block table.

    Attributes:
        window: How many tokens back its attention reaches; None for all of them. Only None is
            supported so far.
    """

    window: int | None = None


@dataclass(frozen=True)
class SchedulerConfig:
    """The settings of a `Scheduler`; the keyword arguments of `Scheduler` are the same.

    Example:
        >>> SchedulerConfig(num_blocks=4096, max_num_seqs=64).block_size
        16

    Attributes:
        num_blocks: KV blocks in memory, 1 … 2^31-1.
        block_size: Token slots in a block, 1 … 256.
        max_num_seqs: Rows of the batch, 1 … 65,536.
        max_num_batched_tokens: Tokens that one step may compute, at least 1.
        max_model_len: Bounds prompt and output together, at least 2.
        batching: How prompts share steps with decodes: "static", "continuous", "mixed" or
            "chunked". All but "chunked" need max_num_batched_tokens ≥ max_model_len.
        policy: The order of the queue: "fcfs", "priority", "sjf" (fewest tokens to prefill) or
            "edf" (earliest deadline).
        aging: Rank gained per second of waiting, finite and at least 0.
        bypass_limit: How many later requests may pass a head that does not fit; only 0 so far.
        max_partial_prefills: Prompts left incomplete after a step, at least 1; "chunked" only.
        long_prefill_threshold: Cap per prompt and step while others wait, 0 for none; "chunked"
            only.
        watermark: Share of the usable blocks kept available at admission, 0 … 1, 1 excluded.
        reserve: When blocks are taken: "on_demand", or "worst_case" for prompt and max_tokens at
            admission.
        preemption: How a running sequence gives up its blocks; only "recompute" so far.
        victim: Who does: "latest" in policy order, "least_computed", or "lowest_class".
        inflight_steps: Plans that may be out at once, 1 … 4.
        num_lookahead: Extra slots kept for drafts; only 0 so far.
        prefix_caching: Whether full blocks are published and found again.
        partial_hits: Whether a hit may end inside a block; only False so far.
        dedupe: Whether equal blocks are merged; False keeps a sequence's own block in its table.
        reserve_null_block: Whether block 0 is never given out and does not count as usable.
        eviction: Which cached block goes first; only "lru" so far.
        hash_seed: Seed of the block hashes, 0 … 2^64-1.
        host_blocks: Blocks of the host tier; only 0 so far.
        disk_blocks: Blocks of the disk tier; only 0 so far.
        events: Whether cache events are recorded; only False so far.
        tenant_weights: Shares of the tenants under a fair policy; only empty so far.
        max_adapters_per_step: Distinct adapters in a step; 0 for no limit, only 0 so far.
    """

    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    max_model_len: int = 32_768
    batching: str = "chunked"
    policy: str = "fcfs"
    aging: float = 0.0
    bypass_limit: int = 0
    max_partial_prefills: int = 4
    long_prefill_threshold: int = 0
    watermark: float = 0.01
    reserve: str = "on_demand"
    preemption: str = "recompute"
    victim: str = "latest"
    inflight_steps: int = 1
    num_lookahead: int = 0
    prefix_caching: bool = True
    partial_hits: bool = False
    dedupe: bool = True
    reserve_null_block: bool = False
    eviction: str = "lru"
    hash_seed: int = 0
    host_blocks: int = 0
    disk_blocks: int = 0
    events: bool = False
    tenant_weights: Mapping[int, float] = field(default_factory=dict[int, float])
    max_adapters_per_step: int = 0

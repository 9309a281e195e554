"""Plain views of what either implementation returns: lists and dicts that compare with `==`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

_POOL_STATS = (
    "num_blocks",
    "usable",
    "blank",
    "cached",
    "held",
    "fenced",
    "available",
    "guarded",
    "prefix_queries",
    "prefix_hits",
    "published_blocks",
    "merged_blocks",
    "evicted_blocks",
    "copies",
)
CACHE_STATS = (*_POOL_STATS, "sequences", "open_steps")
SCHEDULER_STATS = (
    *_POOL_STATS,
    "waiting",
    "running",
    "requests",
    "steps",
    "scheduled_tokens",
    "preemptions",
    "recomputed_tokens",
    "resumed_queries",
    "resumed_hits",
    "finished",
    "plans_out",
)
PLAN_HANDLES = ("seqs", "sample_seqs", "admitted", "resumed", "preempted", "ended")
PLAN_ARRAYS = (
    *PLAN_HANDLES,
    "rows",
    "num_tokens",
    "query_start",
    "token_ids",
    "positions",
    "slot_mapping",
    "token_source",
    "seq_lens",
    "sample",
    "sample_indptr",
    "table_changes",
    "copies",
    "zero",
)
PLAN_NUMBERS = ("number", "num_decodes", "num_padded")
PLAN_CSR = ("kv_indptr", "kv_indices", "kv_last_page_len")  # built when asked for
OUTCOME_HANDLES = ("seqs", "finished")
OUTCOME_ARRAYS = (*OUTCOME_HANDLES, "indptr", "tokens", "reasons")


def as_list(value: Any) -> Any:
    """An array as nested lists; anything else as it is."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def stats_view(stats: Any, names: tuple[str, ...]) -> dict[str, int]:
    if isinstance(stats, dict):
        return {name: stats[name] for name in names}
    return {name: getattr(stats, name) for name in names}


def plan_view(plan: Any, name_of: Callable[[int], Any]) -> dict[str, Any]:
    """A plan's numbers and arrays, its handles replaced by names that both sides share."""
    view = {name: as_list(getattr(plan, name)) for name in PLAN_ARRAYS}
    for name in PLAN_HANDLES:
        view[name] = [name_of(handle) for handle in view[name]]
    return view | {name: getattr(plan, name) for name in PLAN_NUMBERS}


def csr_view(plan: Any) -> dict[str, Any]:
    return {name: as_list(getattr(plan, name)) for name in PLAN_CSR}


def outcome_view(outcome: Any, name_of: Callable[[int], Any]) -> dict[str, list[Any]]:
    view = {name: as_list(getattr(outcome, name)) for name in OUTCOME_ARRAYS}
    for name in OUTCOME_HANDLES:
        view[name] = [name_of(handle) for handle in view[name]]
    return view

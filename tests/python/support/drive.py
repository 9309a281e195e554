"""The loop of an engine, for tests: step, run the model, commit, until nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import octavo
from support.toy_model import PagedModel
from support.views import as_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_KEPT = (
    "seqs",
    "rows",
    "num_tokens",
    "seq_lens",
    "table_changes",
    "admitted",
    "resumed",
    "preempted",
    "ended",
)


class Engine:
    """A scheduler, the model that it drives, and what came out."""

    def __init__(self, num_blocks: int, block_size: int, **options: Any) -> None:
        options = {"watermark": 0.0, "max_num_seqs": 8, "max_model_len": 256} | options
        self.scheduler = octavo.Scheduler(num_blocks, block_size=block_size, **options)
        self.model = PagedModel(num_blocks, block_size)
        self.now = 0.0
        self.plans: list[dict[str, Any]] = []
        self.outputs: dict[int, list[int]] = {}
        self.reasons: dict[int, octavo.Reason] = {}

    def add(self, prompt: Sequence[int], max_tokens: int, **options: Any) -> int:
        """Adds a request. Returns its sequence."""
        request = self.scheduler.add(list(prompt), max_tokens=max_tokens, **options)
        (seq,) = as_list(self.scheduler.sequences(request))
        self.outputs[seq] = []
        return seq

    def begin(self) -> Any:
        """The next plan, or None; its main arrays are kept in `plans`."""
        self.now += 1.0
        plan = self.scheduler.step(self.now)
        if plan is not None:
            view = {name: as_list(getattr(plan, name)) for name in _KEPT}
            self.plans.append(view | {"num_decodes": plan.num_decodes})
        self.scheduler.audit()
        return plan

    def end(self, plan: Any, tokens: Sequence[int] | None = None) -> Any:
        """Runs the model on a plan and commits what it samples, or the tokens given."""
        sampled = self.model(plan)
        outcome = self.scheduler.commit(plan, sampled if tokens is None else tokens)
        for seq, accepted in outcome:
            self.outputs[int(seq)] += as_list(accepted)
        for seq, reason in zip(as_list(outcome.finished), as_list(outcome.reasons), strict=True):
            assert seq not in self.reasons, "an end is reported once"
            self.reasons[seq] = octavo.Reason(reason)
        self.scheduler.audit()
        return outcome

    def step(self, tokens: Sequence[int] | None = None) -> dict[str, Any]:
        """One whole step, which must have something to do. Returns the plan's main arrays."""
        plan = self.begin()
        assert plan is not None
        self.end(plan, tokens)
        return self.plans[-1]

    def steps(self, limit: int = 1_000) -> Iterator[dict[str, Any]]:
        """Steps until nothing is left, and lets the last releases take effect."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                assert self.begin() is None
                return
            yield self.step()
        message = f"work is left after {limit} steps"
        raise AssertionError(message)

    def run(self, limit: int = 1_000, each: Callable[[dict[str, Any]], None] | None = None) -> int:
        """Runs all of `steps`. Returns how many there were."""
        count = 0
        for plan in self.steps(limit):
            count += 1
            if each is not None:
                each(plan)
        return count

    def assert_idle(self) -> None:
        """At idle every block is available, and nothing is remembered but the cache."""
        stats = self.scheduler.stats()
        assert stats.available == stats.usable
        assert stats.held == stats.running == stats.waiting == stats.requests == 0
        assert not self.scheduler.has_work


def older_prompt_beside_two_decodes() -> tuple[Engine, list[int], int]:
    """An engine whose next step takes a decode out of the plan that it is already in.

    Pool 6 x 4, budget 8, no cache. Two decodes own two blocks each, an older prompt of 16 has
    computed 8 tokens in the other two: it needs a block, and the younger decode has to go.
    """
    engine = Engine(6, 4, max_num_batched_tokens=8, prefix_caching=False)
    decodes = [engine.add(range(first, first + 3), 8, arrival=5.0) for first in (100, 200)]
    engine.step()
    prompt = engine.add(range(16), 1, arrival=0.0)
    assert engine.step()["num_tokens"] == [1, 1, 6]
    assert engine.step()["num_tokens"] == [1, 1, 2], "a chunk of 2 fills the prompt's last block"
    return engine, decodes, prompt


def fill(cache: Any, tokens: Sequence[int], **identity: Any) -> int:
    """Opens a sequence on a `KVCache` and computes all its tokens."""
    seq = cache.open(list(tokens), **identity)
    cache.reserve(seq, len(tokens))
    cache.advance(seq, list(tokens)[cache.num_computed(seq) :])
    return seq


def remember(cache: Any, tokens: Sequence[int], **identity: Any) -> None:
    """Leaves the full blocks of these tokens in the cache, held by nobody."""
    cache.close(fill(cache, tokens, **identity))


def fill_up(cache: Any) -> int:
    """A sequence that holds every block nobody else holds."""
    seq = cache.open()
    stats = cache.stats()
    cache.reserve(seq, stats.available * cache.block_size)
    return seq

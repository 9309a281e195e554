"""The theorem: whatever the schedule, every sequence says what the plain model says.

Hypothesis draws a scheduler, and then requests, steps, commits and whatever else callers do, in any
order. A small Llama runs every plan in float64 over paged memory that is NaN wherever nobody may
read (`support.paged_worker`). What an outcome tells is compared with the plain model: unbatched,
unpaged, one text at a time.

To add a rule for new behaviour of the core:

1. a setting: a line in `OPTIONS`; a property of requests: a line in `REQUESTS`;
2. a call: a `@rule` that makes it, between `self.settle()` and nothing else; where it changes what
   a sequence will say, it tells the `Text` of that sequence;
3. memory work: a line in `PagedWorker.begin`, which does it when the plan comes out.

Nothing else: `commit` compares, `settle` audits and poisons, `teardown` runs all to its end.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import octavo
from octavo import Reason
from octavo.attention import Backend, reference
from octavo.model import Llama, Sampling, random_weights
from support import llamas
from support.paged_worker import PagedWorker
from support.texts import Plain, Text

VOCABULARY = 11
SHAPE = llamas.tiny(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, head_dim=4)
MODEL = llamas.model(SHAPE)
# `make mutants` sets it to 0, to see what the tokens alone find.
AUDITS = os.environ.get("OCTAVO_THEOREM_AUDIT", "1") == "1"


def _with_room_for_whole_prompts(options: dict[str, Any]) -> dict[str, Any]:
    if options["batching"] == "chunked":
        return options
    return options | {"max_num_batched_tokens": options["max_model_len"]}


OPTIONS = st.fixed_dictionaries(
    {
        "num_blocks": st.sampled_from([10, 8, 12, 15, 6, 20, 40]),
        "block_size": st.sampled_from([2, 3, 1, 4]),
        "max_num_seqs": st.sampled_from([4, 3, 6, 2, 1]),
        "max_num_batched_tokens": st.sampled_from([20, 8, 40, 12, 5, 3, 1]),
        "max_model_len": st.sampled_from([24, 16, 10]),
        "max_partial_prefills": st.integers(1, 3),
        "long_prefill_threshold": st.sampled_from([0, 0, 2, 5]),
        "watermark": st.sampled_from([0.0, 0.01, 0.25]),
        "prefix_caching": st.sampled_from([True, True, True, False]),
        "batching": st.sampled_from(["chunked", "chunked", "mixed", "continuous", "static"]),
        "policy": st.sampled_from(["fcfs", "priority", "edf", "sjf"]),
        "aging": st.sampled_from([0.0, 0.0, 0.25]),
        "victim": st.sampled_from(["latest", "least_computed", "lowest_class"]),
        "reserve": st.sampled_from(["on_demand", "on_demand", "on_demand", "worst_case"]),
        "inflight_steps": st.sampled_from([3, 1, 2, 4]),
        "dedupe": st.sampled_from([True, True, False]),
        "reserve_null_block": st.sampled_from([False, False, True]),
    }
).map(_with_room_for_whole_prompts)

REQUESTS = st.fixed_dictionaries(
    {"max_tokens": st.sampled_from([8, 12, 5, 3, 1, 0])},
    optional={
        "n": st.sampled_from([2, 3, 1]),
        "min_tokens": st.sampled_from([0, 2]),
        "stop_token_ids": st.sampled_from([(3,), (1, 2, 5)]),
        "priority": st.integers(-1, 1),
        "deadline": st.sampled_from([0.0, 5.0, 50.0]),
        "arrival": st.sampled_from([-1.0, 0.0, 9.0]),
        "adapter": st.sampled_from([0, 1]),
        "salt": st.sampled_from([b"", b"s"]),
        "use_cache": st.sampled_from([True, True, False]),
        "ready": st.sampled_from([True, True, False]),
    },
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 4]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.sampled_from([0, 1, 2**64 - 1]),
)
# Prompts begin alike, so that they meet in the cache.
STEM = [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
TOKENS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4)


# Of the worker that runs the plans.
HABITS = st.fixed_dictionaries(
    {
        "layout": st.sampled_from(["NHD", "HND"]),
        "late": st.sampled_from([True, True, False]),
        "late_copies": st.booleans(),
        "by_row": st.booleans(),
    }
)
ADDS = st.fixed_dictionaries(
    {
        "stem": st.sampled_from([8, 14, 4, 12, 6, 0]),
        "tail": TOKENS,
        "options": REQUESTS,
        "sampling": SAMPLINGS,
    }
)


EXTENSIONS = st.fixed_dictionaries({"tokens": TOKENS, "max_tokens": st.sampled_from([6, 2])})


class Theorem(RuleBasedStateMachine):
    """A scheduler, a worker that runs its plans, and what every sequence ought to say."""

    plain: ClassVar = Plain(MODEL)
    backend: ClassVar[Backend] = reference

    @initialize(
        options=OPTIONS,
        habits=HABITS,
        adds=st.lists(ADDS, min_size=1, max_size=6),
    )
    def start(
        self, options: dict[str, Any], habits: dict[str, Any], adds: list[dict[str, Any]]
    ) -> None:
        self.options = options
        self.sched = octavo.Scheduler(**options)
        sizes = options["num_blocks"], options["block_size"]
        self.worker = PagedWorker(self.plain.model, *sizes, **habits, backend=self.backend)
        self.texts: dict[int, Text] = {}
        self.ties = self.plain.ties
        self.out: list[Any] = []
        self.pins: list[int] = []
        self.just_ended: list[int] = []  # and not released: by the next step
        self.now = 0.0
        self.sources = self.most_out = 0
        for one in adds:
            self._add(**one)

    def settle(self) -> None:
        """After every call: the laws hold, and blank memory is NaN."""
        if AUDITS:
            self.sched.audit()
        self.worker.poison_blank(self.sched.draw())
        self.is_settled = True

    # --- requests ------------------------------------------------------------------------------

    @rule(one=ADDS)
    def add(self, one: dict[str, Any]) -> None:
        self._add(**one)

    def _add(self, stem: int, tail: list[int], options: dict[str, Any], sampling: Sampling) -> None:
        # Prompts and families that could never run are refused: most are cut to what may.
        longest = min(self.options["max_model_len"] - 1, self.options["num_blocks"])
        prompt = (STEM[: max(0, min(stem, longest - len(tail)))] + tail)[:longest]
        least = min(options.get("min_tokens", 0), options["max_tokens"])
        most = 1 if self.options["reserve"] == "worst_case" else self.options["max_num_seqs"]
        n = min(options.get("n", 1), most, max(1, options["max_tokens"]))
        options = options | {"min_tokens": least, "n": n}
        if self.plain.tie is not None:
            sampling = replace(sampling, temperature=0.0)
        try:
            request = self.sched.add(prompt, **options)
        except octavo.RequestError as refused:
            event(f"add is refused: {refused.argument}")
            return
        for index, seq in enumerate(self.sched.sequences(request)):
            self.texts[seq] = Text(
                self.plain,
                request,
                prompt,
                sampling.of(index),
                self._limit(prompt, options["max_tokens"]),
                options["min_tokens"],
                options.get("stop_token_ids", ()),
            )
        self.settle()

    def _limit(self, prompt: list[int], max_tokens: int) -> int:
        return min(max_tokens, self.options["max_model_len"] - len(prompt))

    @rule(data=st.data(), extension=EXTENSIONS)
    def extend(self, data: Any, extension: dict[str, Any]) -> None:
        if self.just_ended:
            self._extend(data.draw(st.sampled_from(self.just_ended)), **extension)

    def _extend(self, seq: int, tokens: list[int], max_tokens: int) -> None:
        text = self.texts[seq]
        known = [*text.prompt, *text.said]
        tokens = tokens[: max(1, self.options["max_model_len"] - 1 - len(known))]
        try:
            self.sched.extend(text.request, tokens, max_tokens=max_tokens)
        except octavo.OctavoError as refused:
            event(f"extend is refused: {type(refused).__name__}")
            return
        event("extended")
        self.just_ended.remove(seq)
        prompt = [*known, *tokens]
        # What it may say counts from there on, and so do its stops.
        limit = self._limit(prompt, max_tokens)
        self.texts[seq] = Text(
            self.plain, text.request, prompt, text.sampling, limit, stops=text.stops
        )
        self.settle()

    @rule(data=st.data(), how=st.sampled_from(["abort", "finish"]), whole=st.booleans())
    def end_early(self, data: Any, how: str, whole: bool) -> None:  # noqa: FBT001 - drawn
        running = [seq for seq, text in self.texts.items() if text.reason is None]
        if not running:
            return
        seq = data.draw(st.sampled_from(running))
        getattr(self.sched, how)(self.texts[seq].request if whole else seq)
        self.settle()

    @rule()
    def wake(self) -> None:
        self._wake()
        self.settle()

    def _wake(self) -> None:
        for text in self.texts.values():
            if text.reason is None:
                self.sched.set_ready(text.request)

    # --- steps ---------------------------------------------------------------------------------

    @rule(later=st.sampled_from([0.0, 1.0, 3.0]))
    def step(self, later: float) -> None:
        self._step(later)

    def _step(self, later: float = 1.0) -> bool:
        self.is_settled = False
        self.now += later
        self.just_ended = []
        plan = self.sched.step(self.now)
        if plan is not None:
            self.sources += len(plan.token_source)
            samplings = [self.texts[seq].sampling for seq in plan.sample_seqs.tolist()]
            self.worker.begin(plan, samplings)
            self.out.append(plan)
            self.most_out = max(self.most_out, len(self.out))
        self.settle()
        return plan is not None

    @rule()
    def commit(self) -> None:
        if self.out:
            self._commit()

    def _commit(self) -> None:
        self.is_settled = False
        plan = self.out.pop(0)
        outcome = self.sched.commit(plan, self.worker.end(plan.number))
        for seq, tokens in outcome:
            self.texts[seq].say(tokens)
        for seq, reason in zip(outcome.finished.tolist(), outcome.reasons.tolist(), strict=True):
            self.texts[seq].end(Reason(reason))
            self.just_ended.append(seq)
        self.settle()

    @rule(count=st.integers(1, 6), depth=st.sampled_from([4, 1, 2, 3]))
    def turns(self, count: int, depth: int) -> None:
        """Steps and commits in turn, with up to `depth` plans out before each commit."""
        for _ in range(count):
            if not self._turn(depth):
                return

    @rule(depth=st.sampled_from([4, 1, 2, 3]), extension=EXTENSIONS)
    def turns_until_an_end(self, depth: int, extension: dict[str, Any]) -> None:
        """The same until somebody has ended, who goes on."""
        for _ in range(20):
            if not self._turn(depth):
                return
            if self.just_ended:
                self._extend(self._likeliest(), **extension)
                return

    def _likeliest(self) -> int:
        """Of those that have just ended one that may go on, if there is one: an only sequence."""
        requests = [text.request for text in self.texts.values()]
        alone = (seq for seq in self.just_ended if requests.count(self.texts[seq].request) == 1)
        return next(alone, self.just_ended[0])

    def _turn(self, depth: int) -> bool:
        """Steps until `depth` plans are out, and commits the oldest. False: nothing is out."""
        while len(self.out) < depth and self._step():
            pass
        if self.out:
            self._commit()
            return True
        return False

    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        if not self.out:
            return
        place = data.draw(st.integers(0, len(self.out) - 1))
        plan = self.out[place]
        number = plan.number
        self.sched.cancel(plan)
        self.worker.void(number)
        del self.out[place:]
        event("cancel")
        self.settle()

    # --- the cache -----------------------------------------------------------------------------

    @rule(how=st.sampled_from(["clear", "new_epoch"]))
    def forget(self, how: str) -> None:
        getattr(self.sched, how)()
        self.settle()

    @rule(stem=st.integers(1, len(STEM)), expires=st.sampled_from([1, 3]))
    def pin(self, stem: int, expires: int) -> None:
        self.pins.append(self.sched.pin(STEM[:stem], expires=expires))
        self.settle()

    def teardown(self) -> None:
        # Hypothesis calls this after a failure, too, which it must not hide.
        if not getattr(self, "is_settled", False):
            return
        self._wake()
        # What a pin holds is nobody's, and where nothing can run, none expires.
        for pin in self.pins:
            with suppress(octavo.StaleHandleError):
                self.sched.unpin(pin)
        for _ in range(3_000):
            if not self._turn(depth=4):
                break
        assert not self.sched.has_work, "L11: every request ends"
        assert all(text.reason is not None for text in self.texts.values())
        self._tell()

    def _tell(self) -> None:
        stats = self.sched.stats()
        spoken = [text.request for text in self.texts.values() if text.said]
        seen = {
            "preempted": stats.preemptions,
            "hit": stats.prefix_hits,
            "resumed by a hit": stats.resumed_hits,
            "copied": stats.copies,
            "several plans out": self.most_out > 1,
            "several sequences of a request": len(spoken) > len(set(spoken)),
            "merged": stats.merged_blocks,
            "evicted": stats.evicted_blocks,
            "token known late": self.sources,
            "token by the tie rule": self.plain.ties - self.ties,
            "said something": len(spoken),
        }
        for name, count in seen.items():
            if count:
                event(name)
        for reason in {text.reason for text in self.texts.values()}:
            event(f"ended by {Reason(reason).name}")


TestTheorem = Theorem.TestCase


def _nearly_equal_outputs() -> Llama:
    """In float32, with two tokens whose logits differ by rounding alone."""
    weights = random_weights(SHAPE, 1)
    head = weights["lm_head.weight"]
    head[7] = np.nextafter(head[3], np.float32(np.inf))
    return Llama(SHAPE, weights)


class TheoremInFloat32(Theorem):
    """The same in float32, greedily: where two logits are as good as each other, either is."""

    plain: ClassVar = Plain(_nearly_equal_outputs(), tie=1e-4)


TestTheoremInFloat32 = TheoremInFloat32.TestCase


def test_the_worker_finds_a_block_that_was_given_away_too_early():
    """The detector is tested: NaN in what a pass reads is an error, not a token."""
    sched = octavo.Scheduler(num_blocks=4, block_size=2)
    worker = PagedWorker(MODEL, 4, 2, layout="NHD", late=True)
    sched.add([1, 2, 3], max_tokens=4)
    for poisoned in (False, True):
        plan = sched.step(0.0)
        worker.begin(plan, [Sampling()])
        if poisoned:
            worker.poison_blank(sched.draw().replace("A", "."))
            with np.testing.assert_raises_regex(octavo.RequestError, "row 0 has NaN"):
                worker.end(plan.number)
        else:
            sched.commit(plan, worker.end(plan.number))

"""`octavo.Scheduler` beside its naive twin, compared after every call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import OctavoError, StateError
from support.naive_scheduler import NaiveScheduler
from support.pairing import (
    Names,
    Result,
    assert_names_handle,
    assert_same_error,
    assert_same_view,
    result_of,
)
from support.replay import TableMirror
from support.truth import Truth
from support.views import (
    PLAN_ARRAYS,
    PLAN_CSR,
    SCHEDULER_STATS,
    as_list,
    csr_view,
    outcome_view,
    plan_view,
    stats_view,
)
from support.worker import Fences, Worker


@dataclass(eq=False)
class Out:
    """A plan that is out, on both sides; what it samples, once it has run."""

    real: Any
    twin: Any
    view: dict[str, Any]
    tokens: list[int] | None = None


class SchedulerPair:
    """Beside both stands a worker that runs each plan when it is returned, or when it is due."""

    def __init__(
        self,
        num_blocks: int,
        *,
        hashing: dict[str, int],
        runs_late: bool = False,
        taste: int = 0,
        **options: Any,
    ) -> None:
        self.options = options
        self.real = octavo.Scheduler(num_blocks, **options, **hashing)
        self.twin = NaiveScheduler(num_blocks, **options)
        self.names = Names()
        self.requests: list[int] = []  # real handles, the dead ones too
        self.seqs: list[int] = []
        self.pins: list[tuple[int, int]] = []  # the real handle, the twin's
        self.out: list[Out] = []
        self.gone: list[Any] = []  # plans that were committed or cancelled
        self.reasons: set[int] = set()
        self.seen: set[str] = set()  # what happened, for statistics
        self.mirror = TableMirror()
        self.worker = Worker(self.twin.block_size)
        self.fences = Fences(self.twin.block_size)
        self.runs_late = runs_late
        self.taste = taste
        self.state = self.snapshot()

    # --- requests ----------------------------------------------------------------------------

    def add(self, prompt: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.add, prompt, **options)
        twin = result_of(self.twin.add, as_list(prompt), **options)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            self._name(real.value, twin.value)
        return self._settle(real, twin)

    def add_many(self, prompts: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.add_many, prompts, **options)
        plain = {name: as_list(value) for name, value in options.items()}
        twin = result_of(self.twin.add_many, [as_list(prompt) for prompt in prompts], **plain)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            assert real.value.dtype == np.int64
            for request, twin_request in zip(as_list(real.value), twin.value, strict=True):
                self._name(request, twin_request)
        return self._settle(real, twin)

    def _name(self, request: int, twin_request: int) -> None:
        self.names.add(request, twin_request)
        self.requests.append(request)
        seqs = as_list(self.real.sequences(request))
        for seq, twin_seq in zip(seqs, self.twin.sequences(twin_request), strict=True):
            self.names.add(seq, twin_seq)
            self.seqs.append(seq)
            (one,) = [one for one in self.twin.living() if one.handle == twin_seq]
            identity = one.family.identity
            self.worker.truths[seq] = Truth(identity, one.index, one.known, taste=self.taste)

    def extend(self, request: int, tokens: Any, *, max_tokens: int) -> OctavoError | None:
        real = result_of(self.real.extend, request, tokens, max_tokens=max_tokens)
        twin_request = self.names.twin_of(request)
        twin = result_of(self.twin.extend, twin_request, as_list(tokens), max_tokens=max_tokens)
        assert_names_handle(real.error, request)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            (twin_seq,) = self.twin.sequences(twin_request)
            known = self.twin.tokens(twin_seq)
            self.worker.truths[self.real_of(twin_seq)].go_on_from(known)
            self.seen.add("an extension")
        return self._settle(real, twin)

    def on(self, call: str, handle: int) -> Result:
        """`abort`, `finish`, `set_ready`, `tokens` or `sequences` of a handle."""
        real = result_of(getattr(self.real, call), handle)
        twin = result_of(getattr(self.twin, call), self.names.twin_of(handle))
        assert_names_handle(real.error, handle)
        assert_same_error(real.error, twin.error)
        value = as_list(real.value)
        if call == "sequences" and real.error is None:
            assert [self.names.twin_of(seq) for seq in value] == twin.value
        else:
            assert value == twin.value
        self._settle(real, twin)
        return real

    # --- the cache ---------------------------------------------------------------------------

    def clear(self) -> bool:
        return self._whole("clear")

    def new_epoch(self) -> None:
        self._whole("new_epoch")

    def _whole(self, call: str) -> Any:
        real, twin = result_of(getattr(self.real, call)), result_of(getattr(self.twin, call))
        assert real.value == twin.value
        self._settle(real, twin)
        return real.value

    def match(self, tokens: Any, **identity: Any) -> Result:
        real = result_of(self.real.match, tokens, **identity)
        twin = result_of(self.twin.match, as_list(tokens), **identity)
        assert real.value == twin.value
        self._settle(real, twin)
        return real

    def pin(self, tokens: Any, **options: Any) -> OctavoError | None:
        real = result_of(self.real.pin, tokens, **options)
        twin = result_of(self.twin.pin, as_list(tokens), **options)
        if real.error is None:
            self.pins.append((real.value, twin.value))
        return self._settle(real, twin)

    def unpin(self, pick: int) -> OctavoError | None:
        """Lets a pin go, or one that has gone."""
        real, twin = self.pins[pick % len(self.pins)]
        return self._settle(result_of(self.real.unpin, real), result_of(self.twin.unpin, twin))

    # --- steps -------------------------------------------------------------------------------

    def step(self, now: float, room: int | None = None) -> Result:
        """A step; the plan is written into `room` bytes of ours, if it fits."""
        options = {} if room is None else {"out": np.zeros(room, dtype=np.uint8)}
        real = result_of(self.real.step, now, **options)
        twin = result_of(self.twin.step, now)
        assert_same_error(real.error, twin.error)
        assert (real.value is None) == (twin.value is None)
        if real.value is not None:
            view = plan_view(real.value, self.names.of_real)
            assert_same_view(view, plan_view(twin.value, self.names.of_twin))
            assert_same_view(csr_view(real.value), csr_view(twin.value))
            numbers = [out.view["number"] for out in self.out]
            assert all(number in numbers for _, number, _ in view["token_source"])
            self.out.append(Out(real.value, twin.value, view))
            self.mirror.apply(real.value)
            self.fences.observe(real.value, self.mirror)
            self._note(view)
            self._check_buffer(real.value, room)
            if not self.runs_late:
                self.run(self.out[-1])
        self._settle(real, twin)
        return real

    def run(self, out: Out) -> list[int]:
        """What the worker samples for a plan that is out: it runs it now or ran it before."""
        if out.tokens is None:
            out.tokens = self.worker.run(out.real)
        return out.tokens

    def commit(self, shape: Any = list, counts: Any = None) -> Result:
        """Commits the oldest plan out, which must exist, with what the worker samples for it."""
        out = self.out[0]
        sampled = self.run(out)
        tokens = sampled if shape is list else np.array(sampled, dtype=shape)
        arguments = () if counts is None else (counts,)
        real = result_of(self.real.commit, out.real, tokens, *arguments)
        twin = result_of(self.twin.commit, out.twin, sampled, *arguments)
        assert_same_error(real.error, twin.error)
        if real.error is None:
            assert_same_view(
                outcome_view(real.value, self.names.of_real),
                outcome_view(twin.value, self.names.of_twin),
            )
            self._let_go(self.out[:1])
            self.reasons |= set(as_list(real.value.reasons))
        self._settle(real, twin)
        return real

    def cancel(self, place: int) -> Result:
        """Cancels a plan that is out, and all after it: the worker ran them, or never will."""
        out = self.out[place]
        for kept in self.out[:place]:
            self.run(kept)
        for void in self.out[place:]:
            if void.tokens is None:
                self.worker.skip(void.real)
        real, twin = result_of(self.real.cancel, out.real), result_of(self.twin.cancel, out.twin)
        assert_same_error(real.error, twin.error)
        self.seen.add("a cancelled plan" if len(self.out) == place + 1 else "cancelled plans")
        self._let_go(self.out[place:])
        self._settle(real, twin)
        return real

    def _let_go(self, gone: list[Out]) -> None:
        self.out = [out for out in self.out if out not in gone]
        for out in gone:
            self.fences.forget(out.view["number"])
            self.gone.append(out.real)

    def _check_buffer(self, plan: Any, room: int | None) -> None:
        """A plan's buffer is all of it, wherever it lies."""
        assert plan.in_out == (room is not None and plan.buffer.nbytes <= room)
        other = octavo.StepPlan.from_buffer(plan.buffer.tobytes())
        assert plan_view(other, self.names.of_real) == self.out[-1].view
        with pytest.raises(StateError):
            self.real.commit(other, [])

    def _note(self, view: dict[str, Any]) -> None:
        for name in ("copies", "token_source", "resumed"):
            if view[name]:
                self.seen.add(f"some {name}")
        if len(self.out) > 1:
            self.seen.add("several plans out")
        if len(view["sample"]) > len(set(view["sample"])):
            self.seen.add("a fork")

    # --- comparing ---------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The real scheduler's whole state as callers can see it."""
        tokens = {seq: result_of(self.real.tokens, seq) for seq in self.seqs}
        return {
            "stats": stats_view(self.real.stats(), SCHEDULER_STATS),
            "tokens": {
                self.names.of_real(seq): as_list(result.value)
                for seq, result in tokens.items()
                if result.error is None
            },
            "block_tables": as_list(self.real.block_tables[0]),
            "draw": self.real.draw(),
            "has_work": self.real.has_work,
        }

    def check(self) -> None:
        """Both sides show the same state, and both keep the laws."""
        self.real.audit()
        self.twin.audit()
        self.state = self.snapshot()
        twin = {
            "stats": stats_view(self.twin.stats(), SCHEDULER_STATS),
            "tokens": {self.names.of_twin(one.handle): one.known for one in self.twin.living()},
            "block_tables": self.twin.block_tables,
            "draw": self.twin.draw(),
            "has_work": self.twin.has_work,
        }
        assert_same_view(self.state, twin)
        self._check_plans()

    def _check_plans(self) -> None:
        """A plan keeps its arrays while it is out, and gives none away after that."""
        for out in self.out:
            assert_same_view(out.view, plan_view(out.real, self.names.of_real))
        for plan in self.gone[-1:]:
            for name in (*PLAN_ARRAYS, *PLAN_CSR):
                with pytest.raises(StateError):
                    getattr(plan, name)
        for out in self.out[:-1]:
            with pytest.raises(StateError):
                _ = out.real.kv_indptr

    def check_mirror(self) -> None:
        """L8: whoever replays all changes knows every running row's table."""
        tables = as_list(self.real.block_tables[0])
        for sequence in self.twin.running:
            row, length = sequence.row, len(sequence.table)
            assert row is not None
            assert self.mirror.row(row, length) == tables[row][:length]
            assert not any(tables[row][length:])

    def check_truth(self) -> None:
        """Whatever is known of a sequence is what it says alone."""
        for sequence in self.twin.living():
            truth = self.worker.truths[self.real_of(sequence.handle)]
            said = [truth.token(place) for place in range(len(sequence.known))]
            assert sequence.known == said

    def real_of(self, twin: int) -> int:
        return self.names.real[self.names.of_twin(twin)]

    def _settle(self, real: Result, twin: Result) -> OctavoError | None:
        assert_same_error(real.error, twin.error)
        if real.error is not None:
            assert self.snapshot() == self.state, "L12: a call that raises changes nothing"
            return real.error
        self.check()
        return None

"""The loop of an engine: plans in, tokens out.

Everything that is hard is elsewhere: the scheduler says what runs on which blocks, the back end
reads and writes them, the model knows neither.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from octavo._core import Outcome, Scheduler, StepPlan
from octavo.attention import KVSpec, PagedKV, reference
from octavo.errors import RequestError, StateError
from octavo.model.llama import Batch, Llama
from octavo.model.sampler import Sampling, sample
from octavo.types import Reason

if TYPE_CHECKING:
    from octavo.attention import Backend
    from octavo.types import TokenIds

__all__ = ["Engine", "Generation"]


@dataclass
class Generation:
    """A request and what it has said so far.

    Attributes:
        request: Its handle in the scheduler.
        seqs: The handles of its n sequences.
        tokens: What each of them has said.
        reasons: Why each ended; None while it runs.
    """

    request: int
    seqs: tuple[int, ...]
    tokens: list[list[int]] = field(init=False)
    reasons: list[Reason | None] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in self.seqs]
        self.reasons = [None for _ in self.seqs]

    @property
    def is_done(self) -> bool:
        """Whether all of its sequences have ended."""
        return None not in self.reasons


class _Running(NamedTuple):
    generation: Generation
    place: int
    # Of the generation, at that place.
    said: list[int]
    sampling: Sampling


class _Out(NamedTuple):
    """A plan that was run and is not committed."""

    plan: StepPlan
    number: int
    sampled: npt.NDArray[np.int32]


class Engine:
    """A model, a scheduler and KV memory that is paged.

    With `inflight_steps` above 1 a step is planned and run before the one before it is committed:
    its unknown tokens are those that the earlier plan sampled.

    Args:
        model: What runs.
        num_blocks: KV blocks in memory.
        block_size: Token slots in a block.
        layout: Of the pages: "NHD" or "HND".
        backend: What attends over pages, with the model's arrays; by default
            `octavo.attention.reference`. On a GPU: `octavo.attention.gpu.backend()`.
        **options: Further settings of the `Scheduler`. By default a text may be as long as the
            model was made for.

    Attributes:
        model: As given.
        scheduler: Who runs when.
        kv: The memory.

    Raises:
        ConfigError: A setting outside its range.

    Example:
        >>> from octavo.model import Llama, LlamaConfig, random_weights
        >>> config = LlamaConfig(
        ...     vocab_size=100,
        ...     hidden_size=32,
        ...     intermediate_size=64,
        ...     num_layers=2,
        ...     num_heads=4,
        ...     num_kv_heads=2,
        ...     head_dim=8,
        ... )
        >>> engine = Engine(Llama(config, random_weights(config)), num_blocks=16)
        >>> generation = engine.add([3, 1, 4], max_tokens=5)
        >>> len([token for _, token in engine.stream(generation)])
        5
    """

    def __init__(
        self,
        model: Llama,
        *,
        num_blocks: int,
        block_size: int = 16,
        layout: str = "NHD",
        backend: Backend | None = None,
        **options: Any,
    ) -> None:
        config = model.config
        options = {"max_model_len": max(2, config.max_position_embeddings)} | options
        self.model = model
        self.scheduler = Scheduler(num_blocks, block_size=block_size, **options)
        spec = KVSpec(
            num_layers=config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
            layout=layout,
        )
        self.kv = PagedKV(spec, xp=model.xp)
        self._backend: Backend = reference if backend is None else backend
        self._inflight: int = options.get("inflight_steps", 1)
        self._out: deque[_Out] = deque()
        self._running: dict[int, _Running] = {}

    def add(
        self,
        prompt: TokenIds,
        *,
        max_tokens: int,
        sampling: Sampling | None = None,
        n: int = 1,
        **options: Any,
    ) -> Generation:
        """Adds a request.

        Args:
            prompt: Token ids, each below the vocabulary's size.
            max_tokens: The most that each sequence says.
            sampling: How tokens are chosen; by default the largest logit.
            n: How many sequences; each has random numbers of its own.
            **options: What else `Scheduler.add` takes.

        Returns:
            The request, whose tokens come with the steps.

        Raises:
            RequestError: A token that the model does not know, or what the scheduler refuses.
        """
        ids, size = np.asarray(prompt), self.model.config.vocab_size
        if ids.size and ids.dtype.kind in "iu" and ids.max() >= size:
            raise RequestError("prompt", f"{int(ids.max())} is no token of a vocabulary of {size}")
        request = self.scheduler.add(prompt, max_tokens=max_tokens, n=n, **options)
        generation = Generation(request, self.scheduler.sequences(request))
        chosen = sampling or Sampling()
        for index, seq in enumerate(generation.seqs):
            said, sampling = generation.tokens[index], chosen.of(index)
            self._running[seq] = _Running(generation, index, said, sampling)
        return generation

    def abort(self, generation: Generation) -> None:
        """Ends a request; what it has said stays. One that is done is left alone."""
        if not generation.is_done:
            self.scheduler.abort(generation.request)

    def step(self, now: float | None = None) -> Outcome | None:
        """Runs plans until as many are out as may be, and commits the oldest.

        Args:
            now: Seconds on a clock that does not go back; by default a monotonic one.

        Returns:
            What was accepted and who ended; None where nothing can run.

        Raises:
            RequestError: The model gave a logit that is no number. The plan is cancelled, so that
                its sequences are computed again; so is it when the model raises anything else.
        """
        while len(self._out) < self._inflight:
            plan = self.scheduler.step(time.monotonic() if now is None else now)
            if plan is None:
                break
            try:
                sampled = self._run(plan)
            except BaseException:
                self.scheduler.cancel(plan)
                raise
            self._out.append(_Out(plan, plan.number, sampled))
        if not self._out:
            return None
        oldest = self._out.popleft()
        outcome = self.scheduler.commit(oldest.plan, oldest.sampled)
        self._tell(outcome)
        return outcome

    def stream(self, generation: Generation) -> Iterator[tuple[int, int]]:
        """Steps until a request is done, whoever else runs beside it.

        Yields:
            (index of the sequence, token), also of what was said before.

        Raises:
            StateError: Nothing can run before somebody else does something, such as `set_ready`.
        """
        told = [0 for _ in generation.seqs]
        while True:
            done = generation.is_done
            for index, tokens in enumerate(generation.tokens):
                for token in tokens[told[index] :]:
                    yield index, token
                told[index] = len(tokens)
            if done:
                return
            if self.step() is None:
                raise StateError("nothing can run, and the request has not ended")

    def run(self) -> None:
        """Steps until nothing can run."""
        while self.step() is not None:
            pass

    def _run(self, plan: StepPlan) -> npt.NDArray[np.int32]:
        xp, kv = self.model.xp, self.kv
        if len(plan.copies):
            self._backend.copy_blocks(kv, xp.asarray(plan.copies))
        rows = plan.rows
        if not len(rows):
            return np.empty(0, dtype=np.int32)
        lengths = plan.seq_lens
        width = -(-int(lengths.max()) // kv.spec.block_size)
        tables = self.scheduler.block_tables[0][:, :width][rows]
        chosen = plan.sample
        batch = Batch(
            plan.num_decodes,
            xp.asarray(self._token_ids(plan)),
            xp.asarray(plan.positions),
            xp.asarray(plan.slot_mapping),
            xp.asarray(plan.query_start),
            xp.asarray(tables),
            xp.asarray(lengths),
            xp.asarray(chosen),
        )
        logits = self.model.forward(batch, kv, self._backend)
        samplings = [self._running[seq].sampling for seq in plan.sample_seqs.tolist()]
        return sample(logits, samplings, plan.positions[chosen] + 1, xp=xp)

    def _token_ids(self, plan: StepPlan) -> npt.NDArray[np.int32]:
        """The plan's tokens, those not known yet taken from the plans that sampled them."""
        sources = plan.token_source
        if not len(sources):
            return plan.token_ids
        tokens = np.array(plan.token_ids)
        for out in self._out:
            here = sources[sources[:, 1] == out.number]
            tokens[here[:, 0]] = out.sampled[here[:, 2]]
        return tokens

    def _tell(self, outcome: Outcome) -> None:
        for seq, tokens in outcome:
            self._running[seq].said.extend(tokens)
        for seq, reason in zip(outcome.finished.tolist(), outcome.reasons.tolist(), strict=True):
            running = self._running.pop(seq)
            running.generation.reasons[running.place] = Reason(reason)

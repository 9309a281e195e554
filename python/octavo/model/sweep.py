"""How many tokens per second a machine decodes, against how many texts it decodes at once.

A step reads every weight once, however many share it: up to where arithmetic binds, more texts
cost little more time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from octavo.model.engine import Engine

if TYPE_CHECKING:
    from octavo.attention import Backend
    from octavo.model.llama import Llama

__all__ = ["SweepPoint", "batch_sweep"]

_BLOCK_SIZE = 16


class SweepPoint(NamedTuple):
    """What a batch size gave.

    Attributes:
        batch: Texts at once.
        tokens_per_s: Decoded tokens of all of them together, per second.
        step_ms: Milliseconds of a step, the median.
    """

    batch: int
    tokens_per_s: float
    step_ms: float


def batch_sweep(  # noqa: PLR0913 - each is a setting of the one run, by keyword
    model: Llama,
    batches: Sequence[int],
    *,
    prompt_tokens: int,
    max_tokens: int,
    seed: int = 0,
    backend: Backend | None = None,
) -> Iterator[SweepPoint]:
    """Decodes with each batch size; one step computes the prompts before the clock starts.

    Args:
        model: What runs.
        batches: Batch sizes.
        prompt_tokens: Length of each prompt.
        max_tokens: Tokens that each text says, at least 2.
        seed: Of the prompts.
        backend: As in `Engine`.

    Yields:
        A point for each size, as it is measured.
    """
    draws = np.random.default_rng(seed)
    blocks = -(-(prompt_tokens + max_tokens) // _BLOCK_SIZE)
    for batch in batches:
        engine = Engine(
            model,
            num_blocks=batch * blocks,
            block_size=_BLOCK_SIZE,
            backend=backend,
            max_num_seqs=batch,
            max_num_batched_tokens=batch * prompt_tokens,
            max_model_len=prompt_tokens + max_tokens,
            prefix_caching=False,
            watermark=0.0,
        )
        shape = (batch, prompt_tokens)
        prompts = draws.integers(model.config.vocab_size, size=shape, dtype=np.int32)
        generations = [engine.add(prompt, max_tokens=max_tokens) for prompt in prompts]
        engine.step()
        times: list[float] = []
        while not generations[0].is_done:
            start = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - start)
        median = float(np.median(times))
        yield SweepPoint(batch, batch / median, median * 1e3)

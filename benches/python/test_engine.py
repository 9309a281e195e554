"""What the engine costs beside its model: 64 sequences decode, and their forward pass is free.

Scheduling, the arrays of a pass, telling tokens to their requests, and, greedily, the largest of
512 logits a row. Choosing a token reads every logit, as the last layer does: what it costs grows
with the vocabulary and is the model's work. Drawn tokens are measured beside, to see it.
"""

import numpy as np
import pytest

from octavo.model import Engine, Llama, LlamaConfig, Sampling, random_weights

ROWS = 64
PROMPT = 128
VOCABULARY = 512


class FreeModel(Llama):
    """A Llama whose logits are always the same, and cost nothing."""

    def forward(self, batch, kv, backend):  # noqa: ARG002 - the model's signature
        return self.logits[: len(batch.sample)]


def engine(sampling, inflight_steps=1):
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=8_192,
    )
    model = FreeModel(config, random_weights(config))
    draws = np.random.default_rng(0)
    model.logits = draws.standard_normal((ROWS, VOCABULARY), dtype=np.float32)
    made = Engine(
        model,
        num_blocks=ROWS * 512,
        max_num_seqs=ROWS,
        max_num_batched_tokens=ROWS * PROMPT,
        inflight_steps=inflight_steps,
        prefix_caching=False,
    )
    for prompt in draws.integers(VOCABULARY, size=(ROWS, PROMPT)):
        made.add(prompt, max_tokens=8_000, sampling=sampling)
    made.step()
    return made


@pytest.mark.parametrize("inflight_steps", [1, 2])
@pytest.mark.parametrize(
    "sampling",
    [Sampling(), Sampling(temperature=1.0), Sampling(temperature=1.0, top_p=0.9)],
    ids=["greedy", "sampled", "top_p"],
)
def test_engine_step(benchmark, sampling, inflight_steps, quick):
    made = engine(sampling, inflight_steps)
    benchmark.pedantic(made.step, rounds=200 if quick else 2_000, warmup_rounds=50)
    assert made.scheduler.stats().running == ROWS

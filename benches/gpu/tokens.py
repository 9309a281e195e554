"""Tokens a second of a whole model, beside what the roofline predicts of this card.

A pass of T tokens that reads K tokens of KV memory takes max((W + K k) / BW, T f / F): W bytes of
weights, k bytes a token, f FLOP a token; BW and F are those of a copy and of a product of matrices
in this run. With the extension the scheduler makes the plans; without it the rows stand still, and
that is said.
"""

from __future__ import annotations

import importlib.util
import time

import numpy as np

import machine as machines
import pages
from clock import Clock, Time
from octavo.attention import KVSpec, PagedKV
from octavo.model import Batch, Llama, LlamaConfig, Sampling, sample
from rows import Row

_BATCHES = (1, 4, 16, 64, 256)
_BLOCK = 16


def tokens(machine):
    clock = Clock(machine)
    (bandwidth, _), flops = clock.copy_rate(), clock.product_rate()
    config = _config(machine)
    model = Llama(config, _weights(machine, config), dtype=machine.half, xp=machine.xp)
    heads = f"{config.num_heads}/{config.num_kv_heads} x {config.head_dim}"
    yield Row(
        f"model: {config.num_layers} layers, {heads}, {machine.half}",
        float(config.num_parameters),
        "parameters",
    )
    by = "the scheduler" if importlib.util.find_spec("octavo._core") else "no scheduler"
    steps = machine.size(24, 3)
    prompt = machine.size(512, 9)
    for batch in machine.size(_BATCHES, (1, 3)):
        run = _with_scheduler if by == "the scheduler" else _without
        taken = run(machine, model, (batch, prompt, steps))
        length = prompt + steps // 2
        predicted = _roofline(config, batch, length, bandwidth, flops)
        reached = batch / taken.seconds
        work = f"decode {batch} texts of {length} tokens, {by}"
        yield Row(
            work,
            reached,
            "tokens/s",
            taken.spread,
            f"roofline: {batch / predicted:,.0f} tokens/s",
            reached * predicted / batch,
        )


def _config(machine):
    if machine.is_tiny:
        sizes = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_layers": 2}
        return LlamaConfig(**sizes, num_heads=2, num_kv_heads=1, head_dim=64)
    sizes = {"vocab_size": 32_768, "hidden_size": 4096, "intermediate_size": 14_336}
    return LlamaConfig(**sizes, num_layers=8, num_heads=32, num_kv_heads=8, head_dim=128)


def _weights(machine, config):
    """Weights of the usual scale, made on the card: a hundred times as fast as on the host."""
    random, weights = np.random.default_rng(0), {}
    for name, shape in config.tensors().items():
        scale = 1.0 if name.endswith("embed_tokens.weight") else shape[-1] ** -0.5
        few = pages.normal(random, min(2**20 - 1, int(np.prod(shape))), machine.half)
        few = np.ones_like(few) if name.endswith("norm.weight") else few * few.dtype.type(scale)
        weights[name] = pages.repeated(machine, few.astype(few.dtype), shape, few.dtype)
    return weights


def _roofline(config, batch, length, bandwidth, flops):
    weights = 2 * (config.num_parameters - config.vocab_size * config.hidden_size)
    a_token = 2 * 2 * config.num_layers * config.num_kv_heads * config.head_dim
    flop = 2 * (config.num_parameters - config.vocab_size * config.hidden_size)
    read = weights + batch * length * a_token
    return max(read / bandwidth, batch * flop / flops)


def _with_scheduler(machine, model, shape):
    from octavo.model import Engine  # noqa: PLC0415 - needs the extension

    batch, prompt, steps = shape
    budget = max(batch, 8192)
    # The first texts speak while the last prompts are computed.
    room = steps + 2 * -(-batch * prompt // budget) + 8
    engine = Engine(
        model,
        num_blocks=batch * -(-(prompt + room) // _BLOCK),
        block_size=_BLOCK,
        backend=machine.make(),
        max_num_seqs=batch,
        max_num_batched_tokens=budget,
        max_model_len=prompt + room,
        prefix_caching=False,
        watermark=0.0,
    )
    prompts = np.random.default_rng(1).integers(
        model.config.vocab_size, size=(batch, prompt), dtype=np.int32
    )
    added = [engine.add(one, max_tokens=room) for one in prompts]
    while not all(generation.tokens[0] for generation in added):
        engine.step()
    return _timed(engine.step, steps)


def _without(machine, model, shape):
    """The arrays of a step of decodes, made by hand; every row grows by a token a step."""
    (batch, prompt, steps), xp = shape, machine.xp
    blocks = -(-(prompt + steps + 3) // _BLOCK)
    config = model.config
    spec = KVSpec(
        num_layers=config.num_layers,
        num_blocks=batch * blocks,
        block_size=_BLOCK,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=model.dtype,
    )
    kv, attention = PagedKV(spec, xp=xp), machine.make()
    order = np.random.default_rng(1).permutation(batch * blocks).astype(np.int32)
    tables = order.reshape(batch, blocks)
    tokens_ = np.zeros(batch, np.int32)
    starts, rows = np.arange(batch + 1, dtype=np.int32), np.arange(batch, dtype=np.int32)
    place = [prompt]

    def step():
        at = place[0]
        place[0] += 1
        width = at // _BLOCK + 1
        slots = tables[:, at // _BLOCK].astype(np.int64) * _BLOCK + at % _BLOCK
        arrays = (
            tokens_,
            np.full(batch, at, np.int32),
            slots,
            starts,
            tables[:, :width],
            np.full(batch, at + 1, np.int32),
            rows,
        )
        logits = model.forward(Batch(batch, *map(xp.asarray, arrays)), kv, attention)
        tokens_[...] = sample(logits, [Sampling()] * batch, np.full(batch, at + 1), xp=xp)

    return _timed(step, steps)


def _timed(step, count):
    """Seconds of a step, which ends with its tokens on the host."""
    for _ in range(2):
        step()
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return Time.of(seconds)


if __name__ == "__main__":
    machines.run(tokens)

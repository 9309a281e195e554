"""A Llama over NumPy or CuPy, and two ways to run it.

`plain` is the model as one would write it down: one text, whole, over contiguous arrays. `forward`
runs a step of many texts whose keys and values lie in pages. What both share is what happens to
one token alone; how tokens see each other is written twice, so that one can be held against the
other.

It knows nothing of schedulers: a step comes as arrays.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from octavo._optional import require_cublas
from octavo.attention.arrays import module_of
from octavo.attention.dtypes import MODEL_DTYPES, numpy_dtype
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from octavo.attention import Backend, PagedKV
    from octavo.model.config import LlamaConfig

__all__ = ["Array", "Batch", "Llama"]

# An array of the library that the model runs on: NumPy or CuPy.
Array = Any


class Batch(NamedTuple):
    """One step, N sequences and T tokens, as arrays of the model's library.

    The arrays of a `StepPlan` have these names and types; decodes come first.

    Attributes:
        num_decodes: Sequences at the front that compute one token each.
        token_ids: int32[T].
        positions: int32[T].
        slot_mapping: int64[T], where each token's keys and values go.
        query_start: int32[N + 1], prefix sums of the tokens per sequence.
        block_tables: int32[N, M].
        seq_lens: int32[N], lengths after the step.
        sample: int32[S], the tokens whose logits are asked for.
    """

    num_decodes: int
    token_ids: Array
    positions: Array
    slot_mapping: Array
    query_start: Array
    block_tables: Array
    seq_lens: Array
    sample: Array


class Llama:
    """The model: weights, and two forward passes over them.

    Args:
        config: Its shape.
        weights: Its tensors by their names in a checkpoint, as `load_weights` and
            `random_weights` give them. Those of the right type are not copied.
        dtype: What is computed in: "float64", "float32", "float16" or "bfloat16". Halves are
            widened to float32 for norms, gates and logits, and sums of products are float32's.
        xp: NumPy or CuPy.

    Attributes:
        config: As given.
        dtype: As given.
        xp: As given.

    Raises:
        ConfigError: Another `dtype`.
        RequestError: A tensor is missing, is too many or has another shape.
        MissingDependencyError: bfloat16 needs ml_dtypes, CuPy cuBLAS; it is not installed.

    Example:
        >>> from octavo.model import LlamaConfig, random_weights
        >>> config = LlamaConfig(
        ...     vocab_size=100,
        ...     hidden_size=32,
        ...     intermediate_size=64,
        ...     num_layers=2,
        ...     num_heads=4,
        ...     num_kv_heads=2,
        ...     head_dim=8,
        ... )
        >>> model = Llama(config, random_weights(config, seed=1))
        >>> model.plain([3, 1, 4]).shape
        (3, 100)
    """

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Array],
        *,
        dtype: str = "float32",
        xp: Any = np,
    ) -> None:
        if dtype not in MODEL_DTYPES:
            raise ConfigError("dtype", dtype, f"one of {', '.join(MODEL_DTYPES)}")
        _check(config, weights)
        self.config = config
        self.dtype = dtype
        self.xp = xp
        if xp is not np:
            require_cublas(xp)
        self._type = numpy_dtype(dtype)
        # What must not be rounded to halves on its way.
        self._wide = np.dtype(np.float64 if dtype == "float64" else np.float32)
        tensors = {name: xp.asarray(tensor, dtype=self._type) for name, tensor in weights.items()}
        self._embedding = tensors["model.embed_tokens.weight"]
        self._head = tensors.get("lm_head.weight", self._embedding)
        self._last_norm = tensors["model.norm.weight"]
        self._layers = [_Layer(config, tensors, index) for index in range(config.num_layers)]
        self._frequencies = config.rope.frequencies(config.head_dim, xp)

    def plain(self, tokens: Any) -> Array:
        """Runs one text: unbatched, unpaged, nothing kept.

        Args:
            tokens: Token ids, at least one, each below the vocabulary's size.

        Returns:
            The logits after each token, [T, vocabulary], in float64 for float64, else in float32.
        """
        xp, config = self.xp, self.config
        ids = xp.asarray(tokens)
        length, group = len(ids), config.num_heads // config.num_kv_heads
        turn = self._turn(xp.arange(length))
        unseen = xp.triu(xp.ones((length, length), dtype=bool), 1)
        states = self._embedding[ids]
        for layer in self._layers:
            query, key, value = layer.project(self._norm(states, layer.first_norm), turn)
            heads: list[Array] = []
            for head in range(config.num_heads):
                of_keys = head // group
                # Widened, since halves lose here what a kernel keeps.
                pair = query[:, head].astype(self._wide), key[:, of_keys].astype(self._wide)
                scores = pair[0] @ pair[1].T / math.sqrt(config.head_dim)
                shares = _softmax(xp, xp.where(unseen, -math.inf, scores))
                heads.append((shares @ value[:, of_keys].astype(self._wide)).astype(self._type))
            states = self._finish(layer, states, xp.concatenate(heads, axis=1))
        return self._logits(states)

    def forward(self, batch: Batch, kv: PagedKV, backend: Backend) -> Array:
        """Runs one step over pages; the keys and values of its tokens are written to `kv`.

        Args:
            batch: The step, at least one token.
            kv: The memory, of this model's layers and heads.
            backend: What reads and writes it, such as `octavo.attention.reference`.

        Returns:
            The logits after the tokens of `batch.sample`, [S, vocabulary], in float64 for float64,
            else in float32.

        Raises:
            RequestError: The back end refuses an array, by name. Keys and values of earlier
                layers may have been written.
        """
        turn = self._turn(batch.positions)
        states = self._embedding[batch.token_ids]
        for index, layer in enumerate(self._layers):
            query, key, value = layer.project(self._norm(states, layer.first_norm), turn)
            backend.append(kv, index, key, value, batch.slot_mapping)
            seen = self._attend(index, query, batch, kv, backend)
            states = self._finish(layer, states, seen)
        return self._logits(states[batch.sample])

    def _attend(
        self, layer: int, query: Array, batch: Batch, kv: PagedKV, backend: Backend
    ) -> Array:
        decodes = batch.num_decodes
        parts: list[Array] = []
        if decodes:
            tables, lengths = batch.block_tables[:decodes], batch.seq_lens[:decodes]
            parts.append(backend.decode(kv, layer, query[:decodes], tables, lengths))
        if decodes < len(batch.seq_lens):
            tables, lengths = batch.block_tables[decodes:], batch.seq_lens[decodes:]
            # Decodes compute one token each, so that both starts move by their number.
            starts = batch.query_start[decodes:] - decodes
            parts.append(backend.prefill(kv, layer, query[decodes:], starts, tables, lengths))
        out = parts[0] if len(parts) == 1 else self.xp.concatenate(parts)
        return out.reshape(len(query), -1)

    def _turn(self, positions: Array) -> tuple[Array, Array]:
        """Cosine and sine of each token's angles, dtype[T, 1, head_dim / 2]."""
        angles = positions[:, None, None] * self._frequencies
        return self.xp.cos(angles).astype(self._type), self.xp.sin(angles).astype(self._type)

    def _norm(self, states: Array, weight: Array) -> Array:
        wide = states.astype(self._wide, copy=False)
        square = (wide * wide).mean(axis=-1, keepdims=True)
        scaled = wide / self.xp.sqrt(square + self.config.rms_norm_eps)
        return scaled.astype(self._type, copy=False) * weight

    def _finish(self, layer: _Layer, states: Array, seen: Array) -> Array:
        """What follows attention: the output projection and the feed-forward part."""
        states = states + layer.output(seen)
        return states + layer.feed(self._norm(states, layer.second_norm), self.xp, self._wide)

    def _logits(self, states: Array) -> Array:
        logits = _product(self._head, self._norm(states, self._last_norm))
        return self.xp.ascontiguousarray(logits.astype(self._wide, copy=False))


def _product(weight: Array, inputs: Array) -> Array:
    """`inputs @ weight.T`, from the weight's side: for few rows BLAS takes half the time."""
    if module_of(weight) is np and weight.dtype.itemsize == 2:
        # NumPy has no BLAS for halves, and rounds every sum of theirs.
        wide: Array = weight.astype(np.float32) @ inputs.astype(np.float32).T
        return wide.T.astype(weight.dtype)
    return (weight @ inputs.T).T


class _Linear:
    """A projection: `x @ weight.T + bias`."""

    def __init__(self, tensors: Mapping[str, Array], name: str) -> None:
        self.weight = tensors[f"{name}.weight"]
        self.bias = tensors.get(f"{name}.bias")

    def __call__(self, inputs: Array) -> Array:
        out = _product(self.weight, inputs)
        return out if self.bias is None else out + self.bias


class _Layer:
    """The weights of a layer, and what it does to each token alone."""

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Array], index: int) -> None:
        at = f"model.layers.{index}"
        self.head_dim = config.head_dim
        self.first_norm = tensors[f"{at}.input_layernorm.weight"]
        self.second_norm = tensors[f"{at}.post_attention_layernorm.weight"]
        self.query = _Linear(tensors, f"{at}.self_attn.q_proj")
        self.key = _Linear(tensors, f"{at}.self_attn.k_proj")
        self.value = _Linear(tensors, f"{at}.self_attn.v_proj")
        self.output = _Linear(tensors, f"{at}.self_attn.o_proj")
        self.gate = _Linear(tensors, f"{at}.mlp.gate_proj")
        self.up = _Linear(tensors, f"{at}.mlp.up_proj")
        self.down = _Linear(tensors, f"{at}.mlp.down_proj")

    def project(self, inputs: Array, turn: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Queries, keys and values, [T, heads, head_dim], the first two turned by position."""
        shape = (len(inputs), -1, self.head_dim)
        query = _rotate(self.query(inputs).reshape(shape), turn)
        key = _rotate(self.key(inputs).reshape(shape), turn)
        return query, key, self.value(inputs).reshape(shape)

    def feed(self, inputs: Array, xp: Any, wide: np.dtype[np.generic]) -> Array:
        """SwiGLU (Shazeer, GLU Variants Improve Transformer, 2020, section 2)."""
        gate = self.gate(inputs).astype(wide, copy=False)
        # As tanh, since exp(-gate) overflows where a gate is shut.
        opened = (gate * (0.5 + 0.5 * xp.tanh(0.5 * gate))).astype(inputs.dtype, copy=False)
        return self.down(opened * self.up(inputs))


def _rotate(heads: Array, turn: tuple[Array, Array]) -> Array:
    """Turns the pairs (i, i + head_dim / 2) of each head, as Hugging Face orders them."""
    cosine, sine = turn
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    out = heads.copy()
    out[..., :half] = first * cosine - second * sine
    out[..., half:] = second * cosine + first * sine
    return out


def _softmax(xp: Any, scores: Array) -> Array:
    raised = xp.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def _check(config: LlamaConfig, weights: Mapping[str, Array]) -> None:
    expected = config.tensors()
    for name, shape in expected.items():
        if name not in weights:
            raise RequestError("weights", f"{name} is missing")
        if tuple(weights[name].shape) != shape:
            found = list(weights[name].shape)
            raise RequestError("weights", f"{name} has the shape {found}, not {list(shape)}")
    for name in weights:
        if name not in expected:
            raise RequestError("weights", f"{name} is not part of this model")

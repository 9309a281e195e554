"""The numbers of a model: read from a folder, or made from a seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast
from zlib import crc32

import numpy as np
import numpy.typing as npt

from octavo.attention.dtypes import numpy_dtype
from octavo.errors import CheckpointError
from octavo.model.config import LlamaConfig, read_json
from octavo.model.safetensors import TensorFile

__all__ = ["Weights", "load_weights", "random_weights"]

# By their names in a checkpoint; shapes as in `LlamaConfig.tensors`.
Weights = dict[str, npt.NDArray[Any]]

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


def random_weights(config: LlamaConfig, seed: int = 0, *, dtype: str = "float32") -> Weights:
    """Makes weights that keep the scale of what goes through them, so that every token matters.

    A tensor depends on the seed and its name only. Projections are normal with variance
    1 / inputs, embeddings with 1, biases with 1 / 100; norms are 1.

    Args:
        config: The shape of the model.
        seed: 0 … 2^64-1.
        dtype: A NumPy type, or bfloat16.
    """
    weights: Weights = {}
    wanted = numpy_dtype(dtype)
    for name, shape in config.tensors().items():
        if name.endswith("norm.weight"):
            weights[name] = np.ones(shape, dtype=wanted)
            continue
        draws = np.random.default_rng([seed, crc32(name.encode())])
        scale = 1.0
        if name.endswith(".bias"):
            scale = 0.1
        elif not name.endswith("embed_tokens.weight"):
            scale = shape[-1] ** -0.5
        weights[name] = (draws.standard_normal(shape, dtype=np.float32) * scale).astype(wanted)
    return weights


def load_weights(folder: str | Path, config: LlamaConfig, *, dtype: str = "float32") -> Weights:
    """Reads the weights of a folder: `model.safetensors`, or the shards that its index names.

    Frequencies that old checkpoints store beside the weights, and the output layer of a tied
    model, are left out.

    Args:
        folder: A Hugging Face checkpoint.
        config: Its shape, as `read_config` gives it.
        dtype: What the weights are converted to.

    Raises:
        CheckpointError: A file is not there, truncated or broken; a tensor is missing, is not
            part of such a model, or has another shape.
    """
    where, place = _tensor_files(Path(folder))
    expected = config.tensors()
    present = {name for name in place if not _is_redundant(name, config)}
    _same_names(where, set(expected) - present, "missing")
    _same_names(where, present - set(expected), "not part of this model")
    for name, shape in expected.items():
        if place[name].shape(name) != shape:
            shown = f"has the shape {list(place[name].shape(name))}, {list(shape)} is expected"
            raise CheckpointError(str(place[name].path), shown, name)
    wanted = numpy_dtype(dtype)
    return {name: place[name].read(name).astype(wanted, copy=False) for name in expected}


def _tensor_files(folder: Path) -> tuple[Path, dict[str, TensorFile]]:
    """The file that lists the tensors, and the file in which each is."""
    whole, index = folder / _WHOLE, folder / _INDEX
    if whole.exists() or not index.exists():
        file = TensorFile(whole)
        return whole, dict.fromkeys(file.names, file)
    weight_map: Any = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(str(index), "has no weight_map")
    named = cast("dict[str, Any]", weight_map)
    for shard in named.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CheckpointError(str(index), f"names {shard!r}, which is no file of its folder")
    files = {shard: TensorFile(folder / shard) for shard in sorted(set(named.values()))}
    for name, shard in named.items():
        if name not in files[shard].names:
            raise CheckpointError(
                str(folder / shard), f"is missing, though {_INDEX} names it", name
            )
    place = {name: files[shard] for name, shard in named.items()}
    for file in files.values():
        for name in file.names:
            if place.get(name) is not file:
                raise CheckpointError(str(file.path), f"is not in {_INDEX}", name)
    return index, place


def _is_redundant(name: str, config: LlamaConfig) -> bool:
    if name == "lm_head.weight":
        return config.tie_word_embeddings
    return name.endswith("rotary_emb.inv_freq")


def _same_names(file: Path, names: set[str], wrong: str) -> None:
    if names:
        first, others = min(names), len(names) - 1
        reason = f"is {wrong}" + (f", and {others} more" if others else "")
        raise CheckpointError(str(file), reason, first)

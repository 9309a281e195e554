"""The smallest real engine: a Llama over NumPy or CuPy, on `octavo.Scheduler` and paged memory."""

from octavo.model.config import LlamaConfig, read_config
from octavo.model.engine import Engine, Generation
from octavo.model.llama import Batch, Llama
from octavo.model.rope import Rope
from octavo.model.sampler import Sampling, sample, sequence_seed, uniform
from octavo.model.tokenizer import TextStream, Tokenizer
from octavo.model.weights import Weights, load_weights, random_weights

__all__ = [
    "Batch",
    "Engine",
    "Generation",
    "Llama",
    "LlamaConfig",
    "Rope",
    "Sampling",
    "TextStream",
    "Tokenizer",
    "Weights",
    "load_weights",
    "random_weights",
    "read_config",
    "sample",
    "sequence_seed",
    "uniform",
]

"""The smallest real engine: a Llama over NumPy or CuPy, on `octavo.Scheduler` and paged memory."""

from octavo.errors import MissingDependencyError
from octavo.model.config import LlamaConfig, read_config
from octavo.model.llama import Batch, Llama
from octavo.model.rope import Rope
from octavo.model.sampler import Sampling, sample, sequence_seed, uniform
from octavo.model.tokenizer import TextStream, Tokenizer
from octavo.model.weights import Weights, load_weights, random_weights

try:
    from octavo.model.engine import Engine, Generation
except ModuleNotFoundError as error:
    # On a GPU machine there may be no Rust: the model runs without the scheduler.
    if error.name != "octavo._core":
        raise

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise MissingDependencyError("octavo._core", f"octavo.model.{name} needs the extension")
        raise AttributeError(name)


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

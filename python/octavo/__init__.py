"""Octavo: the KV-block allocator and step scheduler of an LLM serving engine, as a library."""

from octavo.config import KVGroup, SchedulerConfig
from octavo.errors import (
    CheckpointError,
    ConfigError,
    MissingDependencyError,
    OctavoError,
    OutOfBlocks,
    RequestError,
    StaleHandleError,
    StateError,
    TraceError,
    UnknownHandleError,
)
from octavo.padding import PaddedPlan, pad
from octavo.types import Reason

try:
    from octavo._core import (
        CacheStats,
        KVCache,
        Ops,
        Outcome,
        Scheduler,
        SchedulerStats,
        StepPlan,
        __version__,
    )
except ModuleNotFoundError as error:
    # On a GPU machine there may be no Rust: octavo.attention works without the extension.
    if error.name != "octavo._core":
        raise

    def __getattr__(name: str) -> object:
        if name in __all__:
            raise MissingDependencyError("octavo._core", f"octavo.{name} needs the extension")
        raise AttributeError(name)


__all__ = [
    "CacheStats",
    "CheckpointError",
    "ConfigError",
    "KVCache",
    "KVGroup",
    "MissingDependencyError",
    "OctavoError",
    "Ops",
    "OutOfBlocks",
    "Outcome",
    "PaddedPlan",
    "Reason",
    "RequestError",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "StaleHandleError",
    "StateError",
    "StepPlan",
    "TraceError",
    "UnknownHandleError",
    "__version__",
    "pad",
]

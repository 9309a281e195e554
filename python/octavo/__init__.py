"""Octavo: the KV-block allocator and step scheduler of an LLM serving engine, as a library."""

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

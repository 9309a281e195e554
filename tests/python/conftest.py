"""Hypothesis profiles: `dev` while writing, `ci` in `make test`, `long` in `make test-slow`.

`mutants` is `ci` without the search for a smaller failure, which nobody reads. `once` makes the
statistics of the state machines: many short examples.
"""

from hypothesis import HealthCheck, Phase, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "mutants", settings.get_profile("ci"), phases=[Phase.generate], database=None
)
settings.register_profile("long", max_examples=5_000, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "once",
    max_examples=20_000,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=_QUIET,
)
settings.load_profile("dev")

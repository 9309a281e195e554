"""The exceptions as data: attributes, text, pickling."""

import pickle

import pytest

import octavo
from octavo import _optional, errors

EXAMPLES = [
    errors.ConfigError("block_size", 0, "1 … 256"),
    errors.RequestError("prompt", "is empty"),
    errors.RequestError("prompt", "has 9 tokens, 8 fit", 8.0, 1.0),
    errors.UnknownHandleError(7),
    errors.StaleHandleError(7),
    errors.StateError("nothing is out"),
    errors.StateError("law L3 is broken", 3),
    errors.OutOfBlocks(3, 1),
    errors.TraceError("rush.csv", 7, "output_tokens is 0"),
    errors.CheckpointError("config.json", "is not there"),
    errors.CheckpointError("model.safetensors", "is missing", "lm_head.weight"),
    errors.MissingDependencyError("cupy", "install it"),
]


def test_every_class_has_an_example():
    assert {type(error).__name__ for error in EXAMPLES} | {"OctavoError"} == set(errors.__all__)
    assert set(errors.__all__) <= set(octavo.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_are_pickled_with_their_data(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(copy) is type(error)
    assert (vars(copy), str(copy), copy.args) == (vars(error), str(error), error.args)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_share_one_base_and_say_something(error):
    assert isinstance(error, octavo.OctavoError)
    assert str(error)


def test_missing_dependency_is_an_import_error():
    assert isinstance(EXAMPLES[-1], ImportError)


def test_errors_of_the_core_are_pickled():
    with pytest.raises(octavo.ConfigError) as caught:
        octavo.KVCache(0)
    copy = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert (copy.field, copy.value, copy.range) == ("num_blocks", 0, caught.value.range)


def test_absent_gpu_library_is_reported_not_raised_by_import(monkeypatch):
    monkeypatch.setattr(_optional.importlib.util, "find_spec", lambda name: None)
    assert not _optional.cuda_ready()
    with pytest.raises(octavo.MissingDependencyError) as caught:
        _optional.require_cupy()
    assert caught.value.dependency == "cupy"
    assert "octavo[cuda12]" in caught.value.reason

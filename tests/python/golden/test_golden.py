"""Tells every golden scenario to the naive twin and to the real package."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import octavo
from support.naive_cache import NaiveCache
from support.naive_scheduler import NaiveScheduler
from support.views import OUTCOME_HANDLES, PLAN_HANDLES, as_list

STORIES = sorted(Path(__file__).parent.glob("*.json"))
MAKERS = {
    "twin": {"cache": NaiveCache, "scheduler": NaiveScheduler},
    "core": {"cache": octavo.KVCache, "scheduler": octavo.Scheduler},
}
HANDLE_FIELDS = {*PLAN_HANDLES, *OUTCOME_HANDLES}
RUN_OF_TOKENS = re.compile(r"(\d+)\.\.(\d+)")


class Teller:
    """One side of a story: the object, and what the names in it stand for."""

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.things: dict[str, Any] = {}
        self.seqs: dict[str, int] = {}

    def tell(self, step: dict[str, Any]) -> None:
        if "raises" in step:
            expected = dict(step["raises"])
            with pytest.raises(getattr(octavo, expected.pop("type"))) as caught:
                self.perform(step)
            assert {name: getattr(caught.value, name) for name in expected} == expected
            return
        result = self.perform(step)
        if "as" in step:
            self.name(step, result)
        if "gives" in step:
            assert self.written(result, step["gives"]) == step["gives"], step

    def perform(self, step: dict[str, Any]) -> Any:
        if "read" in step:
            return getattr(self.subject, step["read"])
        arguments = [self.meant(argument) for argument in step.get("with", [])]
        if "on" in step:
            named = self.seqs if step["call"] == "tokens" else self.things
            arguments.insert(0, named[step["on"]])
        options = {name: _option(name, value) for name, value in step.get("options", {}).items()}
        return getattr(self.subject, step["call"])(*arguments, **options)

    def name(self, step: dict[str, Any], result: Any) -> None:
        name = step["as"]
        self.things[name] = result
        if step["call"] == "add":
            seqs = as_list(self.subject.sequences(result))
            names = [name] if len(seqs) == 1 else [f"{name}.{i}" for i in range(len(seqs))]
            self.seqs |= dict(zip(names, seqs, strict=True))
            self.things = self.seqs | self.things

    def meant(self, argument: Any) -> Any:
        """An argument with its names and runs of tokens replaced."""
        if isinstance(argument, list):
            return [self.meant(part) for part in argument]
        if isinstance(argument, str) and (run := RUN_OF_TOKENS.fullmatch(argument)):
            return list(range(int(run[1]), int(run[2]) + 1))
        return self.things[argument] if isinstance(argument, str) else argument

    def written(self, result: Any, expected: Any) -> Any:
        """A result in the words of the story: only the fields that it lists."""
        if isinstance(expected, dict):
            return {name: self.field(result, name) for name in expected}
        if isinstance(result, str):
            return result.splitlines()
        if hasattr(result, "copies"):
            return as_list(result.copies)
        plain = as_list(result)
        return [_listed(part) for part in plain] if isinstance(plain, list) else plain

    def field(self, result: Any, name: str) -> Any:
        value = as_list(result[name] if isinstance(result, dict) else getattr(result, name))
        if name not in HANDLE_FIELDS or not isinstance(value, list):
            return value
        names = {handle: name for name, handle in self.seqs.items()}
        return [names[handle] for handle in value]


def _listed(part: Any) -> Any:
    return list(part) if isinstance(part, tuple) else part


def _option(name: str, value: Any) -> Any:
    if name == "salt":
        return value.encode()
    if name == "extra_keys":
        return [(start, end, kind, text.encode()) for start, end, kind, text in value]
    return value


@pytest.mark.parametrize("side", MAKERS)
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_golden_story_holds(path: Path, side: str) -> None:
    story = json.loads(path.read_text())
    (kind,) = {"cache", "scheduler"} & story.keys()
    settings = dict(story[kind])
    teller = Teller(MAKERS[side][kind](settings.pop("num_blocks"), **settings))
    for step in story["steps"]:
        teller.tell(step)
        teller.subject.audit()


def test_golden_stories_are_told_completely() -> None:
    assert len(STORIES) >= 9
    for path in STORIES:
        story = json.loads(path.read_text())
        assert {"title", "laws", "steps"} <= story.keys(), path.name
        assert any("gives" in step for step in story["steps"]), path.name
        assert any("why" in step for step in story["steps"]), path.name

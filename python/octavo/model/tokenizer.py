"""Text to tokens and back, through the optional library `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo._optional import require_tokenizers
from octavo.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from octavo.model.config import LlamaConfig

__all__ = ["TextStream", "Tokenizer"]

# What a decoder writes for bytes that are no whole character yet.
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The tokenizer of a folder: its `tokenizer.json`.

    Args:
        folder: A Hugging Face checkpoint.
        config: The model that its tokens are for.

    Raises:
        MissingDependencyError: `tokenizers` is not installed.
        CheckpointError: The file is not there, is no tokenizer, or knows tokens that the
            embedding has no row for.
    """

    def __init__(self, folder: str | Path, config: LlamaConfig) -> None:
        library = require_tokenizers()
        path = Path(folder) / "tokenizer.json"
        if not path.exists():
            raise CheckpointError(str(path), "is not there")
        try:
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:
            raise CheckpointError(str(path), f"is no tokenizer: {error}") from error
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        largest = max(vocabulary.values(), default=0)
        if largest >= config.vocab_size:
            reason = f"has token {largest}, the embedding {config.vocab_size} rows"
            raise CheckpointError(str(path), reason)

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, special ones at its ends included."""
        tokens: list[int] = self._tokenizer.encode(text).ids
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class TextStream:
    """Text as it grows, cut only between whole characters.

    A token may hold half of a character, and a decoder may treat the first token of a text in its
    own way: text is decoded from a little before what was shown last.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._from = 0
        self._shown = 0

    def push(self, token: int) -> str:
        """Takes a token. Returns the text that it completes, perhaps none."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens[self._from :])
        if text.endswith(_UNFINISHED):
            return ""
        return self._show(text)

    def flush(self) -> str:
        """The rest, whether it is whole or not."""
        return self._show(self._tokenizer.decode(self._tokens[self._from :]))

    def _show(self, text: str) -> str:
        before = self._tokenizer.decode(self._tokens[self._from : self._shown])
        self._from, self._shown = self._shown, len(self._tokens)
        return text[len(before) :]

"""The command `octavo`: one module per verb.

A mistake of the user is one line on standard error and exit code 2; `--debug` shows the traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from octavo import __version__
from octavo.cli import compare, generate, simulate
from octavo.cli.frame import LATER_VERBS, Parser, UsageError
from octavo.errors import OctavoError

__all__ = ["main"]

_INTERRUPTED = 130
_BROKEN_PIPE = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: The words after the command's name; by default those of this process.

    Returns:
        The exit code: 0, 2 for a mistake, 130 after Ctrl-C, 141 when nobody reads the output.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("octavo: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at exit: give it somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except (OctavoError, OSError, UsageError) as error:
        if debug:
            raise
        print(f"octavo: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except Exception as error:
        if debug:
            raise
        kind = type(error).__name__
        print(f"octavo: error: internal: {kind}: {_one_line(error)} (--debug)", file=sys.stderr)
        return 2
    return code


def _dispatch(words: list[str]) -> int:
    parser = Parser(prog="octavo", description="Plan and simulate the serving of language models.")
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="verb", parser_class=Parser)
    simulate.add_to(verbs)
    compare.add_to(verbs)
    generate.add_to(verbs)
    verb = next((word for word in words if not word.startswith("-")), None)
    if verb in LATER_VERBS:
        raise UsageError(f"{verb} comes later; there are simulate, compare and generate")
    options = parser.parse(words)
    if options.verb is None:
        raise UsageError("say what to do: octavo simulate (octavo --help lists the verbs)")
    code: int = options.run(options)
    return code


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""The parts that ``python -m integrations`` and ``python -m integrations.fewbit`` share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def count(text: str) -> int:
    """Read a whole number of at least 1: the type of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {text!r}")
    return int(text)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> int:
    """Runs the command that the arguments name: the parser sets it as ``command``.

    Returns:
        0; 1 after one line on stderr that says what is wrong; 130 when interrupted.
    """
    options = parser.parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except (ImportError, OSError, TypeError, ValueError, RuntimeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted", file=sys.stderr)
        return 130
    return 0

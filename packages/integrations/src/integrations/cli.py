"""The command line: ``python -m integrations``, with the commands that ``--help`` lists."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from integrations.forecast import command

_PROGRAM = "python -m integrations"


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 after one line on stderr that says what is wrong; 130 when interrupted."""
    parser = _Parser(prog=_PROGRAM, description="Compressed training for PyTorch models.")
    command.add_to(parser.add_subparsers(required=True, metavar="COMMAND"))
    options = parser.parse_args(arguments)
    chosen: Callable[[argparse.Namespace], None] = options.command
    try:
        chosen(options)
    except (ImportError, OSError, TypeError, ValueError, RuntimeError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{_PROGRAM}: interrupted", file=sys.stderr)
        return 130
    return 0

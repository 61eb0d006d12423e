"""The command line: ``python -m integrations``, with the commands that ``--help`` lists."""

from __future__ import annotations

from collections.abc import Sequence

from integrations._utils.command_line import Parser, run
from integrations.api import doctor
from integrations.estimate.fit import command as fits
from integrations.estimate.forecast import command


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command. Returns 0; 1 after one line on stderr that says what is wrong; 130 when interrupted."""
    parser = Parser(prog="python -m integrations", description="Compressed training for PyTorch models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command.add_to(commands)
    fits.add_to(commands)
    doctor.add_to(commands)
    return run(parser, arguments)

"""Options of commands. Those that benches share are declared once, with what they are by default and in a quick run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.cli.arguments import positive


class Options:
    """Declares the options of a command, and settles what was not said.

    The namespace that a bench gets has a value for each: what was said, otherwise the quick value with ``--quick``, and
    otherwise the default.

    Args:
        parser: of the command.
    """

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser
        self._usual: dict[str, tuple[Any, Any]] = {}

    def add(self, *flags: str, **options: Any) -> None:
        """An option as ``argparse`` takes it."""
        self._parser.add_argument(*flags, **options)

    def many(
        self,
        flag: str,
        choices: Iterable[str] | None,
        words: str,
        *,
        default: Sequence[str] = (),
        quick: Sequence[str] | None = None,
        metavar: str | None = None,
        kind: Callable[[str], str] = str,
    ) -> None:
        """Names, each given by a flag that may be repeated. The namespace has them without repetitions, under the
        flag's name with an s.

        Args:
            flag: such as ``--part``.
            choices: that there are; ``None`` where ``kind`` knows.
            words: for the help text.
            default, quick: those by default, and in a quick run.
            metavar: in the help text, in place of all choices.
            kind: of one name.
        """
        name = f"{flag.removeprefix('--').replace('-', '_')}s"
        known = None if choices is None else list(choices)
        self._parser.add_argument(
            flag, dest=name, action="append", choices=known, metavar=metavar, type=kind, help=words.replace("%", "%%")
        )
        self._usual[name] = list(default), list(default if quick is None else quick)

    def number(
        self,
        flag: str,
        words: str,
        *,
        default: int | None,
        quick: int | None = None,
        kind: Callable[[str], int] = positive,
    ) -> None:
        """A whole number, with the one by default behind the words."""
        self._parser.add_argument(flag, type=kind, help=f"{words}; default: {default}")
        name = flag.removeprefix("--").replace("-", "_")
        self._usual[name] = default, default if quick is None else quick

    def part(self, choices: Sequence[str], *, quick: Sequence[str] | None = None, words: str = "") -> None:
        """The parts of a bench that are run."""
        usual = words or "default: all"
        self.many("--part", choices, f"of the measurements, repeatable; {usual}", default=choices, quick=quick)

    def quick(self, words: str) -> None:
        """A short run, of which ``words`` say what it has."""
        self._parser.add_argument(
            "--quick", action="store_true", help=f"{words}: shows that it works".replace("%", "%%")
        )

    def seed(self, words: str) -> None:
        """Of whatever is drawn."""
        self._parser.add_argument("--seed", type=int, default=0, help=f"{words}; default: %(default)s")

    def threads(self, default: int) -> None:
        """Of torch's operators."""
        self._parser.add_argument(
            "--threads", type=positive, default=default, help="of torch's operators; default: %(default)s"
        )

    def device(self) -> None:
        """What is measured on."""
        self._parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="default: %(default)s")

    def json(self, place: str = "") -> None:
        """The file that the record is written to; ``place`` says when, and what becomes of one that is there."""
        self._parser.add_argument(
            "--json", type=Path, metavar="FILE", help=f"write all raw values, machine and versions{place}"
        )

    def chart(self, place: str = "") -> None:
        """The file of the chart; ``place`` says where it goes by default."""
        self._parser.add_argument(
            "--chart", type=Path, metavar="FILE", help=f"draw a chart, as PNG, SVG or PDF by its name{place}"
        )

    def deadline(self, what: str) -> None:
        """The time by which a command ends, of which ``what`` is measured one by one."""
        self._parser.add_argument(
            "--deadline",
            type=positive,
            metavar="SECONDS",
            help=f"after which it ends: no {what} begins any more, one that runs is ended; default: none",
        )

    def data_root(self, words: str) -> None:
        """The folder of data sets."""
        self._parser.add_argument("--data-root", type=Path, metavar="DIR", help=words)

    def settle(self, namespace: argparse.Namespace) -> None:
        """Gives what was not said its value, and names without repetitions; ``said`` has what was said."""
        quick = getattr(namespace, "quick", False)
        namespace.said = {name for name in self._usual if getattr(namespace, name) is not None}
        for name, (default, in_a_quick_run) in self._usual.items():
            said = getattr(namespace, name)
            value = said if said is not None else in_a_quick_run if quick else default
            setattr(namespace, name, list(dict.fromkeys(value)) if isinstance(value, list) else value)

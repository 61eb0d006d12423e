"""Table cells that fit their column: shorten names in the middle and lists at the end, and wrap between words."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

from integrations.report.words import shortened

_LEAST = 12  # the columns of the narrowest name


class Name:
    """A module's path in one line.

    Args:
        name: the path.
        level: how deep it is in the tree.
    """

    def __init__(self, name: str, level: int = 0) -> None:
        self.name, self._indent = name, "  " * level

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        length = len(self._indent) + len(self.name)
        return Measurement(min(length, len(self._indent) + _LEAST), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A Text, because rich would read brackets in a string as markup.
        yield Text(self._indent + shortened(self.name, options.max_width - len(self._indent)), no_wrap=True)


class Names:
    """Names in one line: as many as fit, and the number of the others."""

    def __init__(self, names: Sequence[str], most: int = 3) -> None:
        self.names, self._most = names, most

    def _with(self, count: int) -> str:
        more = len(self.names) - count
        return ", ".join(self.names[:count]) + (f" +{more}" if more > 0 else "")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        length = len(self._with(self._most))
        return Measurement(min(length, _LEAST), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        several = (self._with(count) for count in range(self._most, 0, -1))
        found = next((text for text in several if len(text) <= options.max_width), None)
        yield Text(found or shortened(self._with(1), options.max_width), no_wrap=True)


class Words:
    """A text that wraps between words. A word that is longer than a line is shortened in the middle.

    Args:
        text: the text.
        level: how deep it is in the tree.
    """

    def __init__(self, text: str, level: int = 0) -> None:
        self._words, self._indent = text.split(), 2 * level

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(map(len, self._words), default=0)
        length = self._indent + len(" ".join(self._words))
        return Measurement(min(self._indent + min(longest, 2 * _LEAST), length), length)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(options.max_width - self._indent, 1)
        text = Text(" ".join(shortened(word, width) for word in self._words))
        yield Padding(text, (0, 0, 0, self._indent)) if self._indent else text

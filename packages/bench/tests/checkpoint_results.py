"""What tests of ``python -m bench checkpoint`` ask of results: the text that is printed of them."""

from bench.checkpoint.report import render
from bench.layout import console
from bench.machine import Machine

MACHINE = Machine("a processor", 1, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", False, "python", "today")


def text_of(results):
    output = console()
    with output.capture() as captured:
        output.print(render(results))
    return captured.get()


def words(text):
    return " ".join(text.split())

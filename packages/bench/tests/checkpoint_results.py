"""What tests of ``python -m bench checkpoint`` ask of results: the text that is printed of them."""

from bench.results.machine import Machine
from bench.results.record import Record

MACHINE = Machine("a processor", 1, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", False, "python", "today")


SETTINGS = {"device": "cpu", "memory_limit": 2**34, "seed": 0, "channels_last": False}


def recorded(*entries):
    return Record("checkpoint", MACHINE, SETTINGS, list(entries))

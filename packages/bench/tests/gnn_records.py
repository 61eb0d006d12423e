"""What tests of ``python -m bench gnn`` ask of records."""

from dataclasses import replace

from bench.runner.memory import Memory
from bench.suites.gnn.entries import Curve

from .rendering import printed


def replaced(record, curves=None, memories=None, others=(), **settings):
    """A record with other curves, memories and settings."""
    curves = record.of(Curve) if curves is None else curves
    memories = record.of(Memory) if memories is None else memories
    return replace(record, entries=[*curves, *memories, *others], settings={**record.settings, **settings})


def text_of(record, width=126):
    return printed(record, width)

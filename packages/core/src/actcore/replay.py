"""The part of ``integrations``' runtime that is C. ``integrations.saved.replay`` says what it does, and what with.

``bind_replay`` names that; ``Replay`` compares a saved tensor with what the forward before saved, and stores it as that
was; ``unpack`` restores it.
"""

from __future__ import annotations

from actcore._native import Replay as Replay
from actcore._native import bind_replay as bind_replay
from actcore._native import unpack as unpack

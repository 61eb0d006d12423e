"""The part of ``integrations``' runtime that is C. ``integrations.saved.calls``, ``integrations.saved.replay`` and
``integrations.checkpoint.execution.tape`` say what it does, and what with.

``bind_calls`` names that; ``tracked`` runs a torch function of a forward, and notes what is known of its tensors.

``bind_replay`` names that; ``Replay`` compares a saved tensor with what the forward before saved, and stores it as that
was; ``unpack`` restores it.

``bind_tape`` names that; ``followed`` runs an operator of a forward that follows a plan, and numbers what it makes.
"""

from __future__ import annotations

from actcore._native import Replay as Replay
from actcore._native import bind_calls as bind_calls
from actcore._native import bind_replay as bind_replay
from actcore._native import bind_tape as bind_tape
from actcore._native import followed as followed
from actcore._native import tracked as tracked
from actcore._native import unpack as unpack

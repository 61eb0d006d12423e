"""The part of ``integrations``' runtime that is C. Its modules ``tracing.tracker``, ``runtime.replay`` and, in
``runtime.repeating``, ``call_follower``, ``segments`` and ``tape`` describe the objects and what is done with them.

``bind_calls`` and ``bind_checkpoints`` name that; ``Calls`` runs each torch function of a forward, and notes what is
known of its tensors; ``hold`` notes whose a storage is.

``bind_replay`` names that; ``Replay`` compares a saved tensor with what the forward before saved, and stores it as that
was. ``Pack`` is the pack hook of a session, and ``unpack`` the other; ``packing`` and ``unpacking`` make those that
torch.compile inlines. ``enter`` says which session is a thread's innermost, ``watch`` who unpacks in its place.
``KERNELS`` are the CPU's operators without torch's dispatcher, by which ``Replay`` and
``unpack`` call them where no mode looks on. ``restore`` unpacks what a recomputed operator reads.

``NotedCalls`` makes the formulas of results by those of the forward before; ``hold_operands`` and ``hold_operand`` hold
what a formula reads, and ``recompute`` unpacks a tensor that one recomputes.

``bind_follow`` names that; ``FollowedCalls`` compares the calls of a forward with those of an earlier one.

``bind_segments`` names that; ``RepeatedSegment`` repeats operators of a forward, and ``Handle`` stands for a tensor
that one makes.

``bind_tape`` names that; ``followed`` runs an operator of a forward that follows a plan, and numbers what it makes.
"""

from __future__ import annotations

from actcore._library import cpu_kernels
from actcore._native import Calls as Calls
from actcore._native import FollowedCalls as FollowedCalls
from actcore._native import Handle as Handle
from actcore._native import NotedCalls as NotedCalls
from actcore._native import Pack as Pack
from actcore._native import RepeatedSegment as RepeatedSegment
from actcore._native import Replay as Replay
from actcore._native import bind_calls as bind_calls
from actcore._native import bind_checkpoints as bind_checkpoints
from actcore._native import bind_follow as bind_follow
from actcore._native import bind_replay as bind_replay
from actcore._native import bind_segments as bind_segments
from actcore._native import bind_tape as bind_tape
from actcore._native import enter as enter
from actcore._native import followed as followed
from actcore._native import hold as hold
from actcore._native import hold_operand as hold_operand
from actcore._native import hold_operands as hold_operands
from actcore._native import packing as packing
from actcore._native import recompute as recompute
from actcore._native import restore as restore
from actcore._native import unpack as unpack
from actcore._native import unpacking as unpacking
from actcore._native import watch as watch

KERNELS = cpu_kernels()

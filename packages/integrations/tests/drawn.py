"""The noise that a process draws: which (seed, stream) pairs its codecs are given, and which of them come again."""

import sys
import threading
from collections import namedtuple

import torch

from actcore import device_streams
from actcore.codecs import float8, group_affine, group_affine_rows
from integrations.planner.sensitivity import surroundings
from integrations.policies import standardizing
from integrations.runtime import replay_cache

_CODECS = float8, group_affine, group_affine_rows, standardizing
_SEED = 3, 4  # of an operator's arguments behind the tensor: its seed and its stream
_BITS = (1 << 64) - 1

Draw = namedtuple("Draw", "moment shape total")


def _of_a_measured_plan():
    """Whether a step aside is under way by which a plan is made, or its error measured: a trial, too."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("integrations.api.error_control."):
        frame = frame.f_back
    return frame is not None


class Draws:
    """Notes every pair from now on.

    A plan stores a tensor again in backward with the noise that it had in the forward, which is promised: the pair may
    come again at the same moment for the same elements. Trials are left out, since the step that follows one takes its
    noise: nothing that was computed from it has stayed. So is stream 0, which a tensor of a model gets
    once in 2**64: what is rounded to the nearest, or to see how long it takes, is given that.

    Attributes:
        moment: the number of the step, which who runs it counts on.
        count: pairs so far, of codecs and of the counters that compiled code has.
        repeated: pairs that came again, as words.
    """

    def __init__(self):
        self.moment, self.count, self.repeated = 0, 0, []
        self._seen, self._lock = {}, threading.Lock()
        for module in _CODECS:
            module.noise_key = self._in_python(module.noise_key)
        # What the fast path in C repeats of the forward before, which calls this in the place of the operator.
        for name in ("COMPRESS", "COMPRESS_CLAMPED", "compress_for_norm"):
            setattr(replay_cache, name, self._in_c(getattr(replay_cache, name)))
        device_streams.next_stream.register_kernel("cpu")(self._counted)

    def _note(self, tensor, seed, stream, what):
        if getattr(surroundings._here, "met", None) is not None or int(stream) == 0 or _of_a_measured_plan():
            return
        draw = Draw(self.moment, tuple(tensor.shape), tensor.detach().double().sum().item())
        key = what, int(seed) & _BITS, int(stream) & _BITS
        with self._lock:
            self.count += 1
            known = self._seen.setdefault(key, draw)
            if known != draw:
                self.repeated.append(f"{key}: {known} and {draw}, by {sys._getframe(2).f_code.co_qualname}")

    def _in_python(self, noise_key):
        def noted(tensor, seed, stream):
            plain = isinstance(seed, int) and isinstance(stream, int)
            if plain and type(tensor) is torch.Tensor and not torch.compiler.is_compiling():
                self._note(tensor, seed, stream, "codec")
            return noise_key(tensor, seed, stream)

        return noted

    def _in_c(self, operator):
        def noted(tensor, *arguments):
            self._note(tensor, *(arguments[place] for place in _SEED), "codec")
            return operator(tensor, *arguments)

        noted._schema = None
        return noted

    def _counted(self, like, key):
        with device_streams._lock:
            stream = device_streams._counter(key, like.device).add_(1).clone()
        self._note(like, 0, stream.item(), "counter")
        return stream

"""``random_states``: the generators that a trial run must leave as they were."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch


def random_states() -> Callable[[], None]:
    """A function that puts back torch's and Python's generators, and NumPy's if it is loaded."""
    on_cpu, python = torch.get_rng_state(), random.getstate()
    on_cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None

    def restore() -> None:
        torch.set_rng_state(on_cpu)
        random.setstate(python)
        if on_cuda is not None:
            torch.cuda.set_rng_state_all(on_cuda)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    return restore

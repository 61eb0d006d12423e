"""Long runs in a process of their own, for ``test_long_runs.py``.

``python long_run_child.py memory ROUNDS STEPS SHAPES VERSIONS``: each round plays every scene of ``long_run_scenes.py``
with so many steps, and what the process holds is counted after it; run with ``PYTHONMALLOC=malloc
MALLOC_MMAP_THRESHOLD_=65536``. Torch keeps at most so many versions of one compiled code: once it has them, nothing is
compiled any more. ``... noise ROUNDS STEPS SHAPES``: the same, and which noise was drawn. ``... losses SEEDS EPOCHS``:
what a small model learns of digits, compressed and not. ``... leaking ROUNDS``: what is counted of a process that
leaks. Several of these may follow each other. Prints one JSON object a line, each with its ``kind``, of ``memory`` one
for each round, so that a run that is stopped has told of those before.
"""

import json
import sys
import time
from itertools import pairwise

import torch
from counted import held
from drawn import Draws
from long_run_losses import LEVELS, learned
from long_run_scenes import Run, play
from torch._subclasses.fake_tensor import FakeTensorMode


def memory(rounds, steps, shapes, versions):
    """What was held after each round, and the steps."""
    run = Run(steps, shapes)
    torch._dynamo.config.recompile_limit = versions
    for _ in range(rounds):
        began = time.perf_counter()
        play(run)
        seconds = time.perf_counter() - began
        FakeTensorMode.cache_clear()  # what torch has traced, by shape, which it keeps without end
        yield {"steps": run.taken, "seconds": seconds, **held()}


def leaking(rounds):
    """The same of a process that keeps something of each kind in each round."""
    import functools
    import threading
    from pathlib import Path

    import integrations

    kept, integrations.leaking, forever = [], [], threading.Event()
    cached = integrations.leaked = functools.cache(lambda number: number)
    for number in range(rounds):
        kept.append((torch.ones(1 << 20), Path(__file__).open(), integrations.Level(bits=4)))  # noqa: SIM115
        integrations.leaking.append(number)
        cached(number)
        threading.Thread(target=forever.wait, daemon=True).start()
        yield held()


def noise(rounds, steps, shapes):
    """How many pairs of seed and stream were drawn, and which came again."""
    torch.compiler.reset()  # what the runs before have compiled, and how often
    draws = Draws()
    run = Run(steps, shapes)
    run.step = counted(run.step, draws)
    for _ in range(rounds):
        play(run)
    yield {"steps": run.taken, "drawn": draws.count, "repeated": draws.repeated[:20]}


def counted(step, draws):
    """A step that is told to ``draws``."""

    def told(*given):
        draws.moment += 1
        return step(*given)

    return told


def losses(seeds, epochs):
    """The loss at the end by level and seed."""
    yield {level or "plain": [learned(level, seed, epochs) for seed in range(seeds)] for level in (None, *LEVELS)}


KINDS = {"memory": memory, "losses": losses, "noise": noise, "leaking": leaking}


if __name__ == "__main__":
    torch.set_num_threads(1)
    words = sys.argv[1:]
    starts = [*(place for place, word in enumerate(words) if word in KINDS), len(words)]
    for start, end in pairwise(starts):
        kind, *numbers = words[start:end]
        for found in KINDS[kind](*map(int, numbers)):
            print(json.dumps({"kind": kind, **found}), flush=True)

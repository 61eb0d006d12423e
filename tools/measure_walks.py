"""Measures how much code three flows pass through: a saved tensor, a plan and a Q-layer.

    python tools/measure_walks.py

For each flow it prints the files and classes of ``integrations`` whose code runs, and the chain of calls from where the
flow begins to the bytes of a tensor, or to the native solver.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import integrations
from integrations import qmodules

ROOT = str(Path(integrations.__file__).parent)


class Walk:
    """What runs of ``integrations`` in a flow.

    Args:
        begin: the qualified name of the function at which the chain of calls begins.
        end: the name of the function at which it ends.

    Attributes:
        files: whose code runs.
        classes: whose methods run.
        chain: the calls from the first to the last, each as file and function.
    """

    def __init__(self, begin: str, end: str) -> None:
        self.files: set[str] = set()
        self.classes: set[str] = set()
        self.chain: list[str] = []
        self._begin, self._end = begin, end

    def run(self, flow: Callable[[], object]) -> None:
        """Run a flow, and note its calls."""
        sys.setprofile(self._see)
        try:
            flow()
        finally:
            sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_name == self._end and not self.chain:
            self.chain = self._calls_to(frame)
        if code.co_filename.startswith(ROOT):
            self.files.add(code.co_filename)
            owner = code.co_qualname.rpartition(".")[0]
            if owner and "<" not in owner:
                self.classes.add(f"{code.co_filename}:{owner}")

    def _calls_to(self, frame: FrameType | None) -> list[str]:
        """Return the calls from the beginning to a frame; none if the beginning is not below it."""
        found, size = list[str](), 0
        while frame is not None:
            code = frame.f_code
            found.append(f"{Path(code.co_filename).name}: {code.co_qualname}")
            if code.co_qualname == self._begin:
                size = len(found)
            frame = frame.f_back
        return found[:size][::-1]


def net() -> nn.Sequential:
    """Return a small net in training mode."""
    return nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 8)).train()


def main() -> None:
    """Print the walks."""
    x = torch.randn(512, 64)
    integrations.compress_model(net(), memory="least")(x)  # measures rates, which happens once in a process
    flows = {
        "a saved tensor at L1": (
            integrations.compress_model(net(), "L1", min_bytes=0),
            "PackedForward._pack_fully",
            "compress",
        ),
        "a plan": (integrations.compress_model(net(), memory="least"), "PlanManager.following", "checkpoint_plans"),
        "a Q-layer": (qmodules.QModule(net()), "LinearFunction.forward", "compress"),
    }
    for name, (model, begin, end) in flows.items():
        walk = Walk(begin, end)
        walk.run(lambda model=model: model(x))
        print(f"{name}: {len(walk.files)} files, {len(walk.classes)} classes, {len(walk.chain)} calls")
        print("".join(f"    {call}\n" for call in walk.chain), end="")


if __name__ == "__main__":
    main()

"""Records what compression does where ranks share a model: docs/results/ranks.md.

    python tools/record_ranks.py > docs/results/ranks.md

Runs the ranks of the tests, on a CPU with gloo, and prints what rank 0 found as tables in Markdown. A library that is
not installed is left out. It takes some five minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "packages" / "integrations"))
os.environ["ACTCORE_LONG"] = "1"  # with adaptive bits and bounds on the error

from tests.two_ranks import run_ranks, run_torchrun  # noqa: E402

LIBRARIES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "torchtitan")
COLUMNS = ("parallelism", "way", "saved, KiB", "stored, KiB", "times less", "on one rank", "peak", "error", "test")
KIB, GIB = 1 << 10, 1 << 30
LOSS, NORM = "loss_metrics/global_avg_loss", "grad_norm"
NAMES = {"plan": "memory=0.8, exact", "chunked": "L1, chunked loss", "error": "memory=0.8, error=0.1"}
Row = tuple[str, ...]


def bytes_of(original: float, stored: float, one: float | None = None) -> Row:
    """The columns of saved bytes."""
    alone = "" if one is None else f"{one:.2f}"
    return f"{original / KIB:.0f}", f"{stored / KIB:.0f}", f"{original / stored:.2f}", alone


def in_parallel() -> Iterator[Row]:
    """Tensor and sequence parallelism, alone and with FSDP2."""
    test = "test_tensor_parallel"
    for ranks, beside in ((2, ""), (4, " x 2 FSDP2")):
        with tempfile.TemporaryDirectory() as folder:
            found = run_ranks(ranks, "tensor_parallel_child.py", Path(folder) / "meet", 900)[0]
        for way in ("tensor", "sequence"):
            for case in ("L1", "lean", "lean, 256 features"):
                level, _, width = case.partition(", ")
                one = found[case]["one rank"]["bytes"]
                row = found[case][way]
                less, name = one[0] / one[1], f"{way}, {width}{beside}" if width else f"{way}{beside}"
                yield (name, level, *bytes_of(*row["bytes"], less), "", f"{row['error']:.3f}", test)
            if ranks == 2:
                yield from of_plans(way, found["plan"][way], test)
                yield from ((way, other, *("",) * 5, "raises", test) for other in ("L2", "memory=0.6, error=0.1"))


def in_units() -> Iterator[Row]:
    """Exact plans in tensor parallelism and FSDP2 together."""
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(4, "tensor_parallel_units_child.py", Path(folder) / "meet", 900)[0]
    for case, one in found.items():
        if isinstance(one, dict):
            plain, ours = one["bytes"]
            error = "0" if one["equal"] else "differs"
            share = f"{ours / plain:.2f} of plain"
            yield f"{case}, 2 FSDP2", "memory=0.5, exact", *("",) * 4, share, error, "test_tensor_parallel_units"


def of_plans(parallelism: str, found: dict[str, Any], test: str) -> Iterator[Row]:
    """The rows of exact plans for several budgets."""
    for memory, plan in found.items():
        if isinstance(plan, dict):
            share = f"{plan['measured'] / found['plain']:.2f} of plain"
            error = "0" if plan["equal"] else "differs"
            yield parallelism, f"memory={memory}, exact", *("",) * 4, share, error, test


def in_context() -> Iterator[Row]:
    """Context parallelism, beside one rank with whole sequences."""
    test = "test_context_parallel"
    with tempfile.TemporaryDirectory() as folder:
        found = run_ranks(2, "context_parallel_child.py", Path(folder) / "meet", 900)[0]
    alone = {"context": "one rank", "context, FSDP2": "one rank", "all keys": "all keys, one rank"}
    for way, other in alone.items():
        for level in ("L1", "lean", "L2", "chunked"):
            one, row = found[level][other]["bytes"], found[level][way]
            name = "L1, chunked loss" if level == "chunked" else level
            yield (way, name, *bytes_of(*row["bytes"], one[0] / one[1]), "", f"{row['error']:.3f}", test)
        yield from of_plans(way, found["plan"].get(way, {}), test)
        if way in found["error"]:
            yield way, "memory, error=0.2", *("",) * 5, "not measured: raises", test


def in_trainers() -> Iterator[Row]:
    """FSDP2 as trainers set it up."""
    with tempfile.TemporaryDirectory() as folder:
        run_torchrun("trainers_fsdp_child.py", Path(folder))
        found = json.loads((Path(folder) / "0.json").read_text())
    for name, row in found.items():
        library, _, case = name.partition(", ")
        if not case.endswith("after") or "bytes" not in row:
            continue
        way = case.removesuffix(", after")
        alone = found["one rank"].get(way)
        less = None if alone is None else alone[0] / alone[1]
        way = way.replace("exact plan", "memory=0.8, exact")
        yield f"FSDP2, {library}", way, *bytes_of(*row["bytes"], less), "", f"{row['error']:.3g}", "test_trainers_fsdp"


def in_deepspeed() -> Iterator[Row]:
    """ZeRO's stages."""
    with tempfile.TemporaryDirectory() as folder:
        run_torchrun("deepspeed_child.py", Path(folder))
        found = json.loads((Path(folder) / "0.json").read_text())
    for stage in (1, 2, 3):
        plain = found[f"plain {stage}"]["losses"]
        for way in ("L1", "lean", "plan", "chunked", "L2", "error"):
            row = found[f"{way} {stage}"]
            name = NAMES.get(way, way)
            if "refused" in row:
                yield f"ZeRO-{stage}", name, *("",) * 5, "raises", "test_deepspeed"
                continue
            differ = max(abs(one - other) / other for one, other in zip(row["losses"], plain, strict=False))
            yield f"ZeRO-{stage}", name, *bytes_of(*row["bytes"]), "", f"{differ:.1e} of the loss", "test_deepspeed"


def in_torchtitan() -> Iterator[Row]:
    """torchtitan's meshes."""
    with tempfile.TemporaryDirectory() as folder:
        run_torchrun("torchtitan_child.py", Path(folder))
        found = json.loads((Path(folder) / "1.json").read_text())  # the last stage of a pipeline has the loss
    for name, steps in found.items():
        mesh, _, way = name.rpartition(" ") if not name.endswith("compiled") else (*name.split(" ", 1)[:1], "", name)
        if mesh in ("", "whole", "resumed", "another") or "plain" in name:
            continue
        way = name.removeprefix(f"{mesh} ")
        alone = mesh.removesuffix(" rounded")
        plain = found[f"{alone} plain, compiled" if way.endswith("compiled") else f"{alone} plain"]
        if isinstance(steps, str):
            yield mesh, way, *("",) * 5, "raises", "test_torchtitan"
            continue
        saved = steps[0]["compression/original(GiB)"] * GIB, steps[0]["compression/stored(GiB)"] * GIB
        differ = abs(steps[0][NORM] / plain[0][NORM] - 1)
        error = f"{differ:.1e} of the gradient's norm" if differ else "0"
        yield mesh, way, *bytes_of(*saved), "", error, "test_torchtitan"


def print_table(title: str, rows: Iterator[Row]) -> None:
    """Print a section with a table."""
    print(f"\n## {title}\n\n| {' | '.join(COLUMNS)} |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def installed() -> str:
    """The versions of the libraries that are there."""
    found = []
    for name in LIBRARIES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> None:
    """Print the page."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    print("# ranks\n")
    print(
        "Compression on several ranks, for small transformers: the bytes that a rank saves for backward without "
        "compression and with it, the ratio of both, the same ratio on one rank, and the error of gradients or losses. "
        "`python tools/record_ranks.py > docs/results/ranks.md`; "
        f"gloo on a CPU, Python {platform.python_version()}, {installed()}; commit {commit.strip()}; "
        f"{datetime.now(UTC):%Y-%m-%d}."
    )
    print_table("Tensor and sequence parallelism", in_parallel())
    print_table("Tensor and sequence parallelism with FSDP2, four ranks", in_units())
    print_table("Context parallelism", in_context())
    print_table("Trainers that shard with FSDP2", in_trainers())
    if importlib.util.find_spec("deepspeed"):
        print_table("DeepSpeed", in_deepspeed())
    if importlib.util.find_spec("torchtitan"):
        print_table("torchtitan", in_torchtitan())


if __name__ == "__main__":
    main()

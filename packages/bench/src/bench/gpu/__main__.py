"""``python -m bench.gpu``, which ``tools/gpu.sh`` calls: runs stages, writes and prints what they find."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from bench.cli.arguments import positive
from bench.errors import BenchError
from bench.gpu.claims import CLAIMS
from bench.gpu.place import ROOT, Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, SKIPPED, StageResults
from bench.gpu.run import LOG, StageRun
from bench.gpu.stages import STAGES
from bench.results.machine import Machine

_ALL = "all"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the stages. Returns 0; 1 where a part failed or was not reached, or after a line that says what is wrong."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except BenchError as error:
        print(f"tools/gpu.sh: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tools/gpu.sh: interrupted; what was found by then is written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tools/gpu.sh",
        description="Finds out on a GPU what only a GPU can tell. Each stage stops itself within nine minutes.",
        epilog="; ".join(f"{stage.name}: {stage.what}" for stage in STAGES.values()),
    )
    parser.add_argument("stages", nargs="+", choices=(*STAGES, _ALL), metavar="STAGE", help=f"{', '.join(STAGES)}, all")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    parser.add_argument(
        "--dry", action="store_true", help="small sizes, to see that all works; with --device cpu always"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("OUT") or ROOT / "bench-results" / "gpu"),
        metavar="DIR",
        help="folder of results; default: $OUT, else bench-results/gpu",
    )
    parser.add_argument("--within", type=positive, metavar="SECONDS", help="that all stages together may take")
    return parser


def _run(options: argparse.Namespace) -> int:
    if options.device == "cpu" and not options.dry:
        raise BenchError("--device cpu shows that the stages work, and nothing of a GPU; say so with --dry")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu --dry")
    place = Place(options.device, options.dry, options.out.resolve())
    names = list(STAGES) if _ALL in options.stages else list(dict.fromkeys(options.stages))
    if options.device == "cuda" and "build" not in names and (why := _no_operators(place)):
        raise BenchError(f"there are no CUDA operators here ({why}); run `build` first, in the same call")
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BenchError(f"{options.out} cannot be made ({error.strerror}); name another folder with --out") from error
    # So that what a stage has started is ended with it. A shell's background job ignores SIGINT, and so would what it
    # starts, which is interrupted where its time is over; what nohup has made to ignore SIGHUP goes on.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt)
    (options.out / LOG).unlink(missing_ok=True)
    end = time.monotonic() + (options.within or float("inf"))
    found: list[StageResults] = []
    try:
        for name in names:
            stage = STAGES[name]
            print(f"stage {name}: {stage.what} ...", flush=True)
            run = StageRun(stage, place, max(0.0, min(stage.seconds, end - time.monotonic())))
            try:
                run.run()
            finally:  # of one that is interrupted, too
                if run.results is not None and run.machine is not None:
                    found.append(run.results)
                    _show(run.results, run.machine)
    finally:
        _tell(found)
    return int(any(results.failed for results in found))


def _no_operators(place: Place) -> str:
    """Why the other stages would find no CUDA operators; empty where they would."""
    place.make_importable()
    try:
        import actcore
    except (ImportError, OSError) as error:  # an operator library that cannot be loaded is an OSError
        return str(error)
    return str(actcore.build_info()["cuda_missing"])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _show(results: StageResults, machine: Machine) -> None:
    """Prints a stage's tables; plainly where what draws them is not there."""
    try:
        from bench.gpu.report import render
        from bench.results.tables import console
    except ImportError as error:
        print(f"tables are plain: {error}")
        for row in results.rows:
            print(f"{row.case} | {row.values} | {row.outcome} {row.reason}")
        return
    wide = console()
    with wide.capture() as capture:
        wide.print(render(results, machine))
    # Columns are filled with blanks; where only the last of what is printed can be seen, they cost lines of it.
    print("\n".join(line.rstrip() for line in capture.get().splitlines()), flush=True)


def _tell(found: Sequence[StageResults]) -> None:
    """Prints what all stages settle, once more, and what they came to, so that the last lines have all of it."""
    verdicts = ((text, results.verdict(name)) for results in found for name, text in CLAIMS[results.stage].items())
    if any(results.measured for results in found):
        print("\n".join(f"{verdict}: {text}" for text, verdict in verdicts))
    print("\n".join(map(_summary, found)), flush=True)


def _summary(results: StageResults) -> str:
    counts = dict.fromkeys((OK, MISSED, FAILED, NOT_REACHED, SKIPPED), 0)
    for row in results.rows:
        counts[row.outcome] += 1
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
    return f"stage {results.stage}: {told or 'nothing'}; {results.seconds:.0f} s; gpu-{results.stage}.json"


if __name__ == "__main__":
    sys.exit(main())

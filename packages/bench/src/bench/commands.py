"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

from argparse import Namespace

import torch

from bench import pages, records
from bench.errors import BenchError
from bench.fewbit import measure as fewbit
from bench.fewbit import step_time
from bench.fewbit.unfinished import partial_file
from bench.finish import finish, require_writable
from bench.vision import measure as vision


def run_vision(options: Namespace) -> None:
    """``python -m bench vision``."""
    parts = list(dict.fromkeys(options.part or vision.PARTS))
    if options.chart is not None and "variance" not in parts:
        raise BenchError("a chart shows the part variance; add --part variance, or leave --chart out")
    require_writable(options.json, options.chart)
    results = vision.run(
        vision.Options(
            parts=parts,
            dataset=options.dataset,
            data_root=options.data_root,
            seeds=options.seeds or (vision.QUICK_SEEDS if options.quick else vision.SEEDS),
            epochs=options.epochs or (vision.QUICK_EPOCHS if options.quick else vision.EPOCHS),
            repeats=options.repeats or (vision.QUICK_REPEATS if options.quick else vision.REPEATS),
            rounds=options.rounds or (vision.QUICK_ROUNDS if options.quick else vision.ROUNDS),
            threads=options.threads,
        )
    )
    finish(results, options.json, options.chart)


def run_fewbit(options: Namespace) -> None:
    """``python -m bench fewbit``."""
    parts = list(dict.fromkeys(options.part or fewbit.PARTS))
    require_writable(options.json, options.chart)
    results = fewbit.run(
        fewbit.Options(
            parts=parts,
            named=options.part is not None,
            device=torch.device(options.device),
            data_root=options.data_root,
            batch=options.batch,
            seeds=options.seeds or (fewbit.QUICK_SEEDS if options.quick else fewbit.SEEDS),
            rounds=options.rounds or (step_time.QUICK_ROUNDS if options.quick else step_time.ROUNDS),
            threads=options.threads,
            quick=options.quick,
            json=options.json,
        )
    )
    finish(results, options.json, options.chart)
    if options.json is not None:
        partial_file(options.json).unlink(missing_ok=True)


def report(options: Namespace) -> None:
    """``python -m bench report``."""
    for page in options.page:
        try:
            text = page.read_text()
        except OSError as error:
            raise BenchError(f"{page} cannot be read ({error.strerror})") from error
        made = pages.rendered(text, options.results)
        missing = [place for place in made.charts if not (page.parent / place).is_file()]
        if options.check:
            if made.text != text:
                raise BenchError(f"{page} has tables that are not those of {options.results}; run it without --check")
            if missing:
                raise BenchError(f"{page} shows {', '.join(missing)}, which is not there; run it without --check")
        for place, draw in made.charts.items():
            if not options.check:
                draw(page.parent / place)
        if made.text != text:
            page.write_text(made.text)
        print(f"{page}: {'as it was' if made.text == text else 'tables made anew'}")


def show(options: Namespace) -> None:
    """``python -m bench show``."""
    finish(records.load(options.results), None, options.chart)

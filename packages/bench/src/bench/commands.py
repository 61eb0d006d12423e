"""What each command of ``python -m bench`` does with its options: it runs, writes, prints and draws."""

from __future__ import annotations

import sys
from argparse import Namespace

import torch

from bench import gnn, pages, records
from bench.errors import BenchError
from bench.finish import default, finish, require_writable
from bench.models import MODELS
from bench.style import require_drawable
from bench.summary import REFERENCE

LEVELS = ("L1", "L1.1", "L1.2")
SEEDS, EPOCHS = 3, 100
QUICK_SEEDS, QUICK_EPOCHS = 1, 10


def run_gnn(options: Namespace) -> None:
    """``python -m bench gnn``. The files have names of their own where none are given."""
    levels = list(dict.fromkeys(options.level or LEVELS))
    if options.chart is not None:
        require_drawable(options.chart)
        if levels == [REFERENCE]:
            raise BenchError("a chart compares levels with full precision; name another level, such as --level L1")
    json = options.json or default(f"gnn-{options.device}.json")
    picture = options.chart or (None if levels == [REFERENCE] else default(f"gnn-{options.device}.png"))
    require_writable(json, picture)
    results = gnn.run(
        gnn.Options(
            models=list(dict.fromkeys(options.model or MODELS)),
            levels=levels,
            dataset=options.dataset,
            data_root=options.data_root,
            device=torch.device(options.device),
            seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
            epochs=options.epochs or (QUICK_EPOCHS if options.quick else EPOCHS),
            threads=options.threads,
            with_kernels=not options.quick,
        )
    )
    finish(results, json, picture)
    print(f"written: {json}{f' and {picture}' if picture else ''}", file=sys.stderr)


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

"""What stands below the tables of ``python -m bench sweep``: what the numbers are, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator

from bench.sweep.results import ERROR, SweepResults


def notes(results: SweepResults) -> Iterator[str]:
    """Paragraphs: what was done, then what is to be said of single subjects."""
    steps = f"{results.steps} step{'s' * (results.steps > 1)}"
    yield (
        f"One training step at {results.level} of each, with random weights and data: compress_model, forward and "
        "backward, report, an optimizer's step, restore_model. saved, stored: what autograd alone keeps of the model's "
        "forward, before and after. gradient's error: the distance of the gradient of all parameters together from "
        "that of the plain step, over the plain one's length; the root of the mean square over "
        f"{steps} from the same weights, batch and dropout masks, each with rounding noise of its own. BatchNorm "
        "trains. passed: that error is at most "
        f"{ERROR:g}, the loss is the plain one bit for bit, fewer bytes are stored or the report says why not, the "
        "optimizer changed every parameter that has a gradient, and restore_model brought the plain model back: "
        "classes, attributes, hooks, state_dict keys, and the plain gradient bit for bit. times: of the models as small "
        "as they are, the quickest compressed step over the quickest plain one."
    )
    for entry in results.subjects:
        if entry.reason and not entry.failure:
            yield f"No fewer bytes are stored of {entry.name}: {entry.reason}."
    for entry in results.subjects:
        if not entry.repeated and not entry.failure:
            yield f"Two plain steps of {entry.name} have different gradients: it cannot be restored bit for bit."
    for entry in results.subjects:
        if not entry.passed:
            yield f"Did not pass: {entry.name}, {'; '.join(entry.shortcomings)}."
    for reason in results.skipped:
        yield f"Left out: {reason}."
    commits = sorted({entry.commit for entry in results.subjects if entry.commit})
    if len(commits) > 1:
        yield f"Measured with commits {', '.join(commits)}; the file says which number is of which."

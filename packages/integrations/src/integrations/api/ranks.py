"""``gather_report``: the report of this rank's model, with the sums of all ranks' reports."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from integrations.api.compress import compression
from integrations.report import RankSummary, Report

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def gather_report(model: nn.Module, *, group: ProcessGroup | None = None) -> Report:
    """Return this rank's report, with the saved bytes and the peaks of all ranks in ``report.ranks``.

    ::

        report = integrations.gather_report(model)  # on every rank
        if torch.distributed.get_rank() == 0:
            print(report)

    This is a collective: every rank of the group calls it at the same point of the program, between two steps. The
    ranks may have different models, levels and plans, such as the stages of a pipeline. A rank that has no report, for
    example because its model is not compressed, takes part like the others, and the table names its error.

    Args:
        model: the compressed model of this rank, as for ``compression``; in a pipeline, the module of its stage.
        group: the process group; ``None`` is the default group of all ranks.

    Returns:
        On every rank, the report of ``compression(model)``, with one ``RankSummary`` for each rank of the group. On a
        rank that has no report, an empty one, whose ``note`` is the error.

    Raises:
        RuntimeError: no process group is initialized.
        ValueError: the group does not contain this rank.
        Exception: if no rank has a report, each rank raises its own error, such as those of ``compression``.
    """
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            "gather_report needs an initialized process group; call torch.distributed.init_process_group first, or use "
            "integrations.compression(model).report() for a single process"
        )
    rank = dist.get_rank()
    if dist.get_rank(group) < 0:
        raise ValueError(f"group must contain the rank that calls gather_report, got a group without rank {rank}")
    # Errors wait until all ranks have met: a rank that raised before would leave the others waiting for it.
    failure: Exception | None = None
    try:
        report = compression(model).report()
        own = _summarize(rank, report)
    except Exception as error:
        failure = error
        report = Report("none", [], note=f"{type(error).__name__}: {error}")
        own = RankSummary(rank, error=report.note)
    found: list[RankSummary | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    ranks = tuple(one for one in found if one is not None)
    if failure is not None and all(one.error for one in ranks):
        raise failure
    return replace(report, ranks=ranks)


def _summarize(rank: int, report: Report) -> RankSummary:
    names = [field.name for field in fields(RankSummary) if field.name not in ("rank", "error")]
    return RankSummary(rank, **{name: getattr(report, name) for name in names})

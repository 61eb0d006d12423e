"""``fit``: whether a training fits into memory, and the cheapest change that makes it fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from integrations._utils.older_names import accepts_older_names
from integrations._utils.progress import shows_planning
from integrations.capture.loss import Loss, require_loss
from integrations.estimate.fit.answer import Fit, StageMemory
from integrations.estimate.fit.ranks import Ranks
from integrations.estimate.fit.sharding import RankShare
from integrations.estimate.fit.stage_ranks import (
    InStages,
    StageRank,
    find_largest,
    make_stage_ranks,
    try_ways,
    why_unplanned,
)
from integrations.estimate.fit.static_memory import count_static_memory
from integrations.estimate.fit.trainings import Training, join_inputs, make_training
from integrations.estimate.fit.ways import PLANS, WAYS, Room
from integrations.estimate.forecast.dtypes import read_precision
from integrations.planner.bounds import USUAL_ERROR
from integrations.planner.budget import AUTO, LEAST, Budget, require_error
from integrations.planner.free_memory import RESERVE, auto_memory, training_memory
from integrations.planner.optimizers import find_optimizer
from integrations.report.words import format_bytes


@accepts_older_names(args="sample", criterion="loss", fsdp="ranks")
@shows_planning
def fit(
    model: Any,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    memory: Budget,
    optimizer: str = "adamw",
    dtype: Any = None,
    lora: Any = None,
    batch: int | None = None,
    tokens: int | None = None,
    criterion: Loss | None = None,
    fsdp: int = 1,
    tp: int = 1,
    pp: int = 1,
    micro_batches: int | None = None,
    accumulate: bool = False,
    error: float = USUAL_ERROR,
    ways: Sequence[str] | None = None,
    grow: bool = True,
    reserve: float = RESERVE,
    device: str | None = None,
) -> Fit:
    """Compute whether a training fits into memory, and which change makes it fit.

    ::

        fit = integrations.fit(model, {"input_ids": ids, "labels": ids}, memory="24GiB", optimizer="adamw")
        print(fit)  # the parts of the memory, the ways to train, and the line of code for the cheapest that fits
        fit.fits, fit.code, fit.largest_batch, fit.longest

    Nothing is computed, and no memory is taken: forward and backward of a copy run on tensors without data. If all
    layers of a model are alike, steps with two and with three layers are captured and extrapolated linearly to all
    layers, after a third capture has confirmed the line.

    It counts weights, gradients, optimizer states, inputs, and the tensors that are alive at the peak of forward,
    backward and the optimizer's step, to the byte of each tensor. It does not count the CUDA context, fragmentation,
    and workspaces of kernels: ``reserve`` leaves room for these.

    Args:
        model: a module on any device, also ``meta``, which stays unchanged; or a configuration of transformers, a model
            type, or the path of a ``config.json``. For a compressed model, the result is that of the model without
            compression.
        args: the inputs of one training step, as for ``integrations.plan``: a tuple, a mapping by name, or the only
            input. Tensors may be on ``meta``, except those whose elements the forward looks at, such as a mask. Those
            of a language model have labels. ``None``: ``batch`` sequences of ``tokens`` tokens. ``sample`` is an older
            name.
        kwargs: further inputs by name.
        memory: bytes of the device, as an int or a string such as ``"24GiB"``; or, if the device is available, a
            fraction of its memory, such as ``0.9`` or ``"90%"``, or ``"auto"`` for its free memory plus the memory that
            the model has allocated there, as for ``compress_model``. ``"least"`` tries all ways and returns the one
            with the least memory.
        optimizer: one of ``sgd``, ``momentum``, ``adam``, ``adamw``, ``adamw-fused``, ``adamw-8bit``, ``adafactor``,
            ``lion``, ``muon``.
        dtype: of the weights: ``"float32"``, ``"bfloat16"``, ``"float16"``, or one of the latter with ``-mixed``, which
            is autocast over weights in float32. ``None``: the model's own.
        lora: train only LoRA adapters: a rank, ``"r=16"``, or a mapping of the arguments of ``peft.LoraConfig``, with
            ``targets`` for ``target_modules`` (``"all-linear"``).
        batch, tokens: sizes of the inputs, to which ``args`` are repeated or cut; 1 and 512 without ``args``.
        criterion: a function that takes the model's output and returns the loss; ``None`` for the loss that the model
            returns. ``loss`` is an older name.
        fsdp: the number of ranks that shard weights, gradients and states with FSDP2. Each of the layers that are
            alike is a unit, and the rest of the model is one more. ``ranks`` is an older name.
        tp: the number of ranks that share each layer, as ``parallelize_module`` does with the ``tp_plan`` of a model of
            transformers, without sequence parallelism.
        pp: the number of stages of a pipeline with equally many layers, under ``Schedule1F1B``, for a causal language
            model of transformers. ``batch`` is that of a micro-batch, and FSDP2 does not reshard during a step. On
            ``fsdp * tp * pp`` ranks, the answer is that of the rank with the highest peak. Plans are not searched if
            ``tp`` or ``pp`` is more than 1.
        micro_batches: the number of micro-batches of a step in the pipeline; ``None`` for ``pp``.
        accumulate: whether steps accumulate gradients, instead of making them.
        error: bound on the gradient's relative error in the way ``"plan"``.
        ways: the ways to try, of ``plain``, ``chunked``, ``recompute``, ``lean``, ``plan``, ``checkpoint``. ``None``:
            all; plans only if no cheaper way fits.
        grow: whether to find the largest batch and the longest sequences that fit, which takes as long again.
        reserve: the fraction of the memory that is reserved for memory that is not counted, at least 0 and below 1; for
            ``"auto"``, of the device's memory. ``compress_model(memory="auto")`` reserves 0.05.
        device: ``"cuda"`` or ``"cpu"``: whether the optimizer's step updates all parameters at once or one by one.
            ``None``: the model's device, and ``"cuda"`` for a model on ``meta`` or a configuration.

    Returns:
        The answer.

    Raises:
        ImportError: ``lora`` without peft, or a configuration without transformers.
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range; the ``args`` of a language model have no labels;
            ``ways`` names a way that is not available; the model cannot be shared by ``tp`` or ``pp`` ranks; or the
            weights alone take more than the memory.
        Exception: what the model raises with these inputs.
    """
    chosen, precision = find_optimizer(optimizer), read_precision(dtype)
    require_loss(criterion)
    require_error(error)
    _require_counts(batch=batch, tokens=tokens, fsdp=fsdp, tp=tp, pp=pp, micro_batches=micro_batches)
    ranks = Ranks.of(fsdp, tp, pp, micro_batches)
    _require_ways(ways)
    if isinstance(reserve, bool) or not isinstance(reserve, int | float) or not 0 <= reserve < 1:
        raise ValueError(
            f"reserve must be a fraction of the memory, at least 0 and below 1, such as 0.05, got {reserve!r}"
        )
    if device not in (None, "cpu", "cuda"):
        raise ValueError(f"device must be 'cpu', 'cuda' or None, got {device!r}")
    sample = join_inputs(args, kwargs)
    training = make_training(model, sample, batch, tokens, precision, lora, criterion, device)
    least = memory == LEAST
    given, available = (0, 0) if least else _find_memory(memory, model, sample, training, reserve)
    here = isinstance(model, nn.Module) and any(one.device.type != "meta" for one in model.parameters())
    device = _get_device(model, training.together).type if here else None
    whole = count_static_memory(training.model, chosen, training.together)
    room = Room(available, whole, 0, RankShare(), not accumulate, least, memory == AUTO)
    stage_ranks = make_stage_ranks(training, ranks, chosen, room, device)
    if not least:
        for one in stage_ranks:
            _require_room(one, given, reserve)
    _require_available(ways, stage_ranks[-1], ranks)
    tried = try_ways(stage_ranks, ranks, error, ways)
    best = _best(tried)
    if least:  # from here on, what the best way takes is what there is
        given = math.ceil(best.way.peak / (1 - reserve))
        available = max(best.way.peak, int(given * (1 - reserve)))
        stage_ranks = [replace(one, room=replace(one.room, available=available, least=False)) for one in stage_ranks]
        tried = [one._replace(way=replace(one.way, fits=0 < one.way.peak <= available)) for one in tried]
        best = _best(tried)
    growing = _growing(tried, best)
    longest = find_largest(stage_ranks, growing, "tokens") if grow else None
    positions = training.positions
    short = longest is not None and positions is not None and longest > positions
    counts = {"parameters": whole.parameters, "trained": whole.trained}  # of all ranks
    memories = tuple(StageMemory(replace(one.room.standing, **counts), one.room.inputs) for one in stage_ranks)
    return Fit(
        model=training.name,
        memory=given,
        available=available,
        reserve=reserve,
        optimizer=optimizer.lower(),
        ranks=ranks.count,
        standing=memories[best.way.stage].standing,
        inputs=memories[best.way.stage].inputs,
        ways=tuple(one.way for one in tried),
        answer=best.way if best.way.fits else None,
        batch=training.batch,
        tokens=training.tokens,
        largest_batch=find_largest(stage_ranks, growing, "batch") if grow else None,
        longest=positions if short else longest,
        grown=growing.way.name if grow else "",
        notes=_notes(chosen.note, ranks, grow and growing.way.name in PLANS, short),
        fsdp=fsdp,
        tp=tp,
        pp=pp,
        micro_batches=ranks.micro_batches,
        stages=memories if pp > 1 else (),
    )


def _best(tried: Sequence[InStages]) -> InStages:
    """The first way that fits, or else the one of the least memory."""
    known = [one for one in tried if one.known]
    if not known:
        raise ValueError(
            "ways must name at least one that is available for this model and this memory; ways=None tries all"
        )
    return next((one for one in known if one.way.fits), min(known, key=lambda one: one.way.peak))


def _growing(tried: Sequence[InStages], best: InStages) -> InStages:
    """The way in which larger inputs are judged: the best, or if that is a plan, which is of these inputs, the one of
    the least memory that is none, fits, and has no larger error."""
    most = best.way.error or 0.0
    fitting = [one for one in tried if one.known and one.way.name not in PLANS and one.way.fits]
    others = [one for one in fitting if one.way.error is not None and one.way.error <= most]
    return best if best.way.name not in PLANS or not others else min(others, key=lambda one: one.way.peak)


def _notes(optimizer: str, ranks: Ranks, scaled: bool, short: bool) -> tuple[str, ...]:
    found = [f"Not counted: CUDA's context, fragmentation, workspaces. {optimizer}".strip()]
    if ranks.fsdp > 1:
        kept = " and keeps them gathered during a step" if ranks.pp > 1 else ""
        found.append(f"FSDP2 is taken to shard each layer and the rest{kept}.")
    if ranks.pp > 1:
        found.append(
            f"The batch is one micro-batch. A step has {ranks.micro_batches} of them, and the first stage holds "
            f"{min(ranks.pp, ranks.micro_batches)} at once (1F1B). Pass return_outputs=False to the schedule's step: "
            "by default, the last stage also keeps the logits of all of them, which are not counted."
        )
    if scaled:
        found.append(
            "Larger inputs are estimated by scaling the bytes of the same plan; with a plan of their own, more may fit."
        )
    if short:
        found.append("Longer sequences would fit, but the model has no positions for them.")
    return tuple(found)


def _find_memory(memory: Budget, model: Any, sample: Any, training: Training, reserve: float) -> tuple[int, int]:
    """Return the bytes of the device that the training is for, and those that it may take."""
    device = _get_device(model, training.together)
    if memory == AUTO:
        available, given = auto_memory(model if isinstance(model, nn.Module) else None, sample, device, reserve)
        return given, available
    given = training_memory(memory, device)
    return given, int(given * (1 - reserve))


def _get_device(model: Any, on_gpu: bool) -> torch.device:
    """Return the device that the training is for."""
    found = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    if found is not None and (found.device.type == "cuda") == on_gpu and found.device.type != "meta":
        return found.device
    return torch.device("cuda" if on_gpu else "cpu")


def _require_counts(**counts: object) -> None:
    for name, count in counts.items():
        if count is None and name not in ("fsdp", "tp", "pp"):
            continue
        if isinstance(count, bool) or not isinstance(count, int):
            raise TypeError(f"{name} must be an int, got {count!r}")
        if count < 1:
            raise ValueError(f"{name} must be 1 or more, got {count}")


def _require_ways(ways: object) -> None:
    if ways is None:
        return
    if isinstance(ways, str) or not isinstance(ways, Sequence):
        raise TypeError(f"ways must be several of {', '.join(WAYS)}, or None for all, got {ways!r}")
    if unknown := [way for way in ways if way not in WAYS]:
        raise ValueError(f"ways must be of {', '.join(WAYS)}, got {', '.join(map(str, unknown))}")


def _require_room(rank: StageRank, memory: int, reserve: float) -> None:
    weights = rank.room.standing.weights
    if weights <= rank.room.available:
        return
    wide = any(one.itemsize > 2 for one in rank.profiles.training.model.parameters())
    narrower = "use 16-bit weights (dtype='bfloat16'), or " if wide else ""
    raise ValueError(
        f"memory must be more than the weights alone take, {format_bytes(weights)}, got {format_bytes(memory)} with "
        f"reserve={reserve:g}; {narrower}shard them over more ranks (fsdp={max(8, 2 * rank.room.share.fsdp)})"
    )


def _require_available(ways: Sequence[str] | None, rank: StageRank, ranks: Ranks) -> None:
    """Raises if ``ways`` names one that the training's ranks or its head rule out."""
    if ways is None:
        return
    name, unchunked = rank.profiles.training.name, rank.profiles.unchunked
    if "chunked" in ways and unchunked:
        raise ValueError(f"ways must not name 'chunked' for this {name}: {unchunked}; leave it out")
    if (why := why_unplanned(ranks)) and (named := [way for way in ways if way in PLANS]):
        raise ValueError(f"ways must not name {', '.join(named)} for this {name}: {why}; leave it out")

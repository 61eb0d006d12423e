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
from integrations.estimate.fit.answer import Fit
from integrations.estimate.fit.growth import largest
from integrations.estimate.fit.layers import find_blocks
from integrations.estimate.fit.profile import Profile
from integrations.estimate.fit.profiles import Profiles
from integrations.estimate.fit.static_memory import Standing, count_static_memory
from integrations.estimate.fit.trainings import Training, join_inputs, make_training
from integrations.estimate.fit.ways import PLANNED, WAYS, Room, Tried, Tries
from integrations.estimate.forecast.dtypes import read_precision
from integrations.planner.bounds import USUAL_ERROR
from integrations.planner.budget import AUTO, LEAST, Budget, require_error
from integrations.planner.free_memory import RESERVE, auto_memory, training_memory
from integrations.planner.optimizers import find_optimizer, nbytes
from integrations.report.words import format_bytes


@accepts_older_names(args="sample", criterion="loss")
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
    ranks: int = 1,
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
            input; floating-point tensors may be on ``meta``. Those of a language model have labels. ``None``: ``batch``
            sequences of ``tokens`` tokens. ``sample`` is an older name.
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
        ranks: the number of processes that shard weights, gradients and states with FSDP2, two of whose units are
            gathered at once.
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
            ``ways`` names ``"chunked"``, but the head is not a linear layer; or the weights alone take more than the
            memory.
        Exception: what the model raises with these inputs.
    """
    chosen, precision = find_optimizer(optimizer), read_precision(dtype)
    require_loss(criterion)
    require_error(error)
    _require_counts(batch=batch, tokens=tokens, ranks=ranks)
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
    blocks = find_blocks(training.model)
    standing = count_static_memory(training.model, chosen, training.together, ranks, blocks)
    if not least:
        _require_room(standing, available, given, reserve)
    here = isinstance(model, nn.Module) and any(one.device.type != "meta" for one in model.parameters())
    profiles = Profiles(training, blocks, _get_device(model, training.together).type if here else None)
    if ways is not None and "chunked" in ways and profiles.unchunked:
        raise ValueError(
            f"ways must not name 'chunked' for this {training.name}: {profiles.unchunked}; leave it out, or have the "
            "model compute its loss from a linear layer, which get_output_embeddings() returns"
        )
    room = Room(available, standing, ranks, not accumulate, least, memory == AUTO)
    inputs = sum(map(nbytes, training.tensors))
    tried = list(Tries(profiles, room, inputs, error).all(ways))
    best = _best(tried)
    if least:  # from here on, what the best way takes is what there is
        given = math.ceil(best.way.peak / (1 - reserve))
        room = replace(room, available=max(best.way.peak, int(given * (1 - reserve))), least=False)
        tried = [one._replace(way=replace(one.way, fits=0 < one.way.peak <= room.available)) for one in tried]
        best = _best(tried)
    growing = _growing(tried, best)
    longest = _largest(training, profiles, room, inputs, growing, "tokens") if grow else None
    positions = training.positions
    short = longest is not None and positions is not None and longest > positions
    return Fit(
        model=training.name,
        memory=given,
        available=room.available,
        reserve=reserve,
        optimizer=optimizer.lower(),
        ranks=ranks,
        standing=standing,
        inputs=inputs,
        ways=tuple(one.way for one in tried),
        answer=best.way if best.way.fits else None,
        batch=training.batch,
        tokens=training.tokens,
        largest_batch=_largest(training, profiles, room, inputs, growing, "batch") if grow else None,
        longest=positions if short else longest,
        grown=growing.way.name if grow else "",
        notes=_notes(chosen.note, ranks, grow and growing.kind == PLANNED, short),
    )


def _best(tried: Sequence[Tried]) -> Tried:
    """The first way that fits, or else the one of the least memory."""
    known = [one for one in tried if one.profile is not None]
    if not known:
        raise ValueError(
            "ways must name at least one that is available for this model and this memory; ways=None tries all"
        )
    return next((one for one in known if one.way.fits), min(known, key=lambda one: one.way.peak))


def _growing(tried: Sequence[Tried], best: Tried) -> Tried:
    """The way in which larger inputs are judged: the best, or if that is a plan, which is of these inputs, the one of
    the least memory that is none, fits, and has no larger error."""
    most = best.way.error or 0.0
    fitting = [one for one in tried if one.profile is not None and one.kind != PLANNED and one.way.fits]
    others = [one for one in fitting if one.way.error is not None and one.way.error <= most]
    return best if best.kind != PLANNED or not others else min(others, key=lambda one: one.way.peak)


def _largest(training: Training, profiles: Profiles, room: Room, inputs: int, tried: Tried, axis: str) -> int | None:
    size: int | None = getattr(training, axis)
    if size is None or tried.profile is None:
        return None

    def at(count: int) -> Profile:
        return profiles.of(tried.kind, tried.chunked, training.sized(**{axis: count}))

    return largest(size, inputs, room, tried.profile, None if tried.kind == PLANNED else at, axis == "batch")


def _notes(optimizer: str, ranks: int, scaled: bool, short: bool) -> tuple[str, ...]:
    found = [f"Not counted: CUDA's context, fragmentation, workspaces. {optimizer}".strip()]
    if ranks > 1:
        found.append("FSDP2 is taken to shard each layer and the rest, and to gather two layers at once.")
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
        if count is None and name != "ranks":
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


def _require_room(standing: Standing, available: int, memory: int, reserve: float) -> None:
    if standing.weights <= available:
        return
    raise ValueError(
        f"memory must be more than the weights alone take, {format_bytes(standing.weights)}, got "
        f"{format_bytes(memory)} with reserve={reserve:g}; use 16-bit weights (dtype='bfloat16'), or shard them "
        "(ranks=8)"
    )

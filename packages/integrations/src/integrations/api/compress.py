"""Compressing a model in place, finding its handle, undoing it; and compression for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from integrations import fewbit, qmodules
from integrations._utils.compiling import compiled_module
from integrations._utils.conversion import require_no_part
from integrations._utils.ecosystem import require_one_checkpointing
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations.api.handle import blocks, effectiveness_check
from integrations.api.handle.blocks import BlockCompression, entered, in_block
from integrations.api.handle.compression import Compression
from integrations.api.handle.converted import Converted, is_converted
from integrations.api.handle.forward import CompressedForward
from integrations.api.handle.kept_modules import require_paths
from integrations.api.handle.module_conversion import Conversions
from integrations.api.handle.never_compressed_warning import await_forward, await_no_longer
from integrations.api.handle.plan_arguments import Asked, Given, level_with, require_loss, require_one, with_plan
from integrations.api.handle.plan_manager import plan_manager_for
from integrations.api.handle.running_session import within
from integrations.planner.bounds import Bounds
from integrations.planner.budget import Budget
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.surroundings import undo_after_trial
from integrations.policies.levels import resolve_level
from integrations.qmodules import QLevel
from integrations.runtime.first_forward import listen_no_longer

Model = TypeVar("Model", bound=nn.Module)
Handle = TypeVar("Handle", bound=Compression)

_HANDLE = Compression.PLACE

# How many forwards a model has had, passed from one block to the next, until restore_model.
_steps: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


def compress_model(
    model: Model,
    level: str | None = None,
    *,
    memory: Budget | None = None,
    time: float | None = None,
    error: float | None = None,
    stores: Iterable[str] | None = None,
    activations: str | int | Mapping[str, Any] | None = None,
    linear: str | float | Mapping[str, Any] | None = None,
    layers: str | QLevel | Mapping[str, Any] | None = None,
    loss: str | Mapping[str, str] | None = None,
    checkpoint: Asked | None = None,
    plan: Given | None = None,
    fallback: str | None = None,
    in_flight: int | None = None,
    strict: bool = False,
    **options: Any,
) -> Model:
    """Make a model train in less memory, from now on and in place, by compressing the tensors that autograd saves for
    backward.

    ::

        compress_model(model, memory="8GiB")  # the fastest exact training that fits
        compress_model(model, memory="least")  # the least memory with exact gradients
        compress_model(model, memory=0.2, error=0.1)  # a fifth of the plain step's, gradients within 10 %
        compress_model(model, level="L1")  # everything in 4 bits or as many as it bears, without a plan
        compress_model(model, plan="plan.json")  # a plan that was saved before, without planning and measuring
        compress_model(stage, memory="8GiB", in_flight=4)  # the budget holds for 4 forwards before a backward

    With ``memory``, ``time``, ``error`` or ``stores``, a plan is built during the first training forward. The plan
    keeps each saved tensor, stores it exactly in fewer bits, recomputes it, offloads it, or, with ``error``, rounds it.
    Unconstrained quantities are minimized: the time within ``memory``, the memory within ``time``, the memory if
    neither is given. If ``memory``, ``time`` and ``error`` are all given, the plan has the least error that was found
    within them.

    The training loop stays as it is. Weights, buffers, hooks, dtype, device, ``state_dict`` keys and the class survive;
    ``restore_model`` undoes it. ``eval()``, ``no_grad`` and ``inference_mode`` are not affected.

    Args:
        model: any module.
        memory: the most that forward and backward may have allocated at once, beyond what is still allocated after
            them: ``torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()`` right after backward, peak
            statistics reset before the step. Bytes as an int, a string such as ``"8GiB"``, or a fraction of the plain
            step's, as a float in (0, 1] or a string such as ``"40%"``. ``"least"``: the least that there is.
            ``"auto"``: what is free on the model's device when the plan is made, less the gradients and optimizer
            states to come and a margin of 5 % of the device's memory. The optimizer is the one that trains the model
            by then, or AdamW if there is none.
        time: the most time that a step may take, as a multiple of the plain step's time; 1.1 allows 10 % more.
        error: the largest error of the whole gradient, relative to its norm, in [0, 1). 0, the default, makes gradients
            bit for bit those of the model. With an error above 0, such as 0.1, the plan may round. The gradient's
            error is measured between steps.
        stores: the ways in which a plan may store values besides keeping them: a sequence of ``"recompute"``,
            ``"exact"`` (signs, masks and the like in few bits), ``"bits"`` (2 to 8, rounded), ``"slopes"`` (an
            activation's derivative in steps), ``"host"``, and single forms such as ``"8 bits"``. By default all that
            ``error`` allows. ``"bits"``, ``"slopes"`` and single forms of bits round, and need ``error``.
        level: one of ``integrations.LEVELS``. Without a plan the default is ``"L1"``. With a plan, the plan chooses the
            tensors to recompute, and the level stores all others, whatever the error. ``"L0"`` is off; ``"L1"`` stores
            4 bits, ``"L1.1"`` 8 bits, ``"L1.2"`` 2 bits; ``"lean"`` stores 4 to 6 bits, and backward recomputes more
            tensors from these; ``"L2"``, ``"L2.1"``, ``"L2.2"`` choose bits for each tensor, 4, 3 and 2 on average;
            ``"L3"`` is L2 in host memory, ``"L4bit-swap"`` 4 bits in host memory, ``"swap"`` unchanged tensors in host
            memory.
        activations: replaces activations by few-bit ones, before the level stores the other tensors: ``"fewbit"`` for
            3 bits, a number of bits from 1 to 8, or ``fewbit.convert``'s arguments.
        linear: replaces linear layers by ones that keep a random sketch of their input: ``"randomized"`` for a fifth of
            it, a ratio in (0, 1], or ``fewbit.RandomizedLinear``'s arguments.
        layers: replaces the remaining layers by Q-layers, which store their inputs themselves: ``"q"`` for 2 bits on
            average, one of ActNN's levels, such as ``"ActNN-L2"``, or ``QModule``'s arguments.
        loss: ``"chunked"`` computes a language model's cross-entropy, or the log-probabilities of chosen tokens, some
            rows of logits at a time, so that the logits never exist as a whole. Results differ from the plain ones only
            by the order in which sums are rounded. For models of transformers; for any other, name the linear layer,
            as in ``{"head": "lm_head"}``. ``"full"`` computes the loss from whole logits, bit for bit as the model
            does. By default, a plan for ``memory`` chooses the loss in chunks if the model returns its loss, and whole
            logits do not fit, or only in more time; otherwise the loss is full. See ``integrations.losses``.
        checkpoint: has backward recompute tensors, without the bounds above, at any level. ``"optimal"`` recomputes as
            much as gives the least peak; a budget of activation peak, in the forms of ``memory``, as little as the
            budget needs; a ``Plan`` of ``integrations.checkpoint.plan``, which may have its own ``loss``, the tensors
            of that plan. The plan is built during the first training forward, on tensors without data. The tensors that
            recomputation starts from are stored in ``checkpoint_bits``. Recomputed tensors are stored as the level says
            until backward reads them.
        plan: a saved plan to use unchanged: a ``Plan``, or the path of a file that ``Plan.save`` wrote, such as
            ``integrations.compression(model).plan.save("plan.json")`` after a training step. No plan is made for inputs
            that are no larger than the plan's. Pass the same options (``seed``, ``keep``, ``group_size``,
            ``min_bytes``) and the same ``activations``, ``linear`` and ``layers`` as when the plan was made. The level
            is the plan's. ``plan`` cannot be combined with ``memory``, ``time``, ``error``, ``stores``, ``in_flight``
            or ``checkpoint``.
        fallback: what happens if no plan keeps to ``memory`` and ``time``: ``"error"``, the default, raises
            ``ValueError``; ``"least"`` warns and uses the plan with the least memory. This is checked in the first
            training forward, in the first that accumulates gradients, and in the first with larger inputs.
            If the gradient's error cannot be measured in four steps, for example because an input is an object that may
            change, or because ``fully_shard`` shards the parameters, ``"error"`` raises ``RuntimeError``, and
            ``"least"`` warns and relies on the plan's estimates.
        in_flight: the most forwards of the model that are in flight at once: their backward is not over. ``memory`` is
            the budget of all of them. ``None``: in a stage of ``torch.distributed.pipelining``, as many micro-batches
            as the schedule has in flight; otherwise 1. Needs ``memory``, ``time``, ``error`` or ``stores``. Unless
            ``fallback`` is ``"least"``, a forward raises ``ValueError`` before it runs if, with those in flight, it
            would exceed a budget in bytes or a fraction, in later steps, too. Each thread that runs the model has a
            budget of its own.
        strict: whether a forward that is stored in no fewer bytes raises ``RuntimeError`` with the reasons; likewise an
            optimizer's step before any forward was compressed. By default, both warn once. A short last batch does
            neither: after a forward that was stored in fewer bytes, those of less than half its size may be stored as
            they are.
        **options: replace fields of the level: ``bits``, ``product_bits``, ``norm_bits``, ``pointwise_bits``,
            ``attention_bits``, ``checkpoint_bits``, ``group_size``, ``min_bytes``, ``seed``, ``adaptive``,
            ``adapt_interval``, ``offload``, ``recompute``, ``keep``; see ``Level``.

    Returns:
        The same object.

    Raises:
        TypeError: ``model`` is not a module, or an argument has the wrong type.
        OSError: the file of the plan cannot be read.
        ValueError: the level or an option is unknown; a value is out of range; the model is already compressed,
            converted or following a plan; an option applies to none of its layers; ``stores`` names a form that rounds,
            without ``error``; or, with a plan, a part of the model is compressed, or the plan is damaged, or of another
            model, minor version of torch or level. The model is unchanged then. In the first training forward: no plan
            keeps to the bounds, and the message names the lowest possible bound, the largest tensors at its peak, and
            the memory that rounding would need; or no plan can be made, and the message names the module, the cause and
            the alternatives. The next training forward tries again to make a plan.
    """
    inner = compiled_module(model)
    others = {"memory": memory, "time": time, "error": error, "stores": stores, "checkpoint": checkpoint}
    if plan is not None:
        checkpoint, level, options = with_plan(plan, level, options, fallback, **others, in_flight=in_flight)
        fallback = in_flight = None
    bounds = Bounds.asked(memory, time, error, stores, level, options, fallback, loss, in_flight)
    exchanges = Conversions.asked(activations, linear, layers, loss)
    level = level_with(level, bounds)
    handle = new_handle(Compression, inner, level, strict, options)
    require_paths(inner, handle.level.keep)
    asked = require_one(bounds, checkpoint)
    if asked is not None:
        exchanges.require_repeatable(plan=plan, **others)
        require_one_checkpointing(inner, "memory" if asked is bounds else "checkpoint" if plan is None else "plan")
        ForwardWrapper.require_none(inner, "give it to the whole model's compress_model")
        if isinstance(asked, Plan):
            require_loss(asked, loss)
    try:
        with exchanges.applied(inner, handle.level):
            if asked is not None:  # a plan is of the model with its exchanged layers
                handle._plan_manager = plan_manager_for(inner, handle.level, asked)
            attach(handle)
    except BaseException:
        _detach(handle)  # an interrupt may come while the block is left
        raise
    return model


def attach(handle: Compression) -> None:
    """Has a handle's model run its forwards under it, from now on; or, where anything raises, as before."""
    model = handle.model
    listen_no_longer(model)  # the handle records these tensors, too
    try:
        # The instance's own dictionary: it is copied with the model, and state_dict and nn.Module's attributes do not
        # see it.
        model.__dict__[_HANDLE] = handle
        await_forward(handle)
        CompressedForward(handle, model.forward, "forward" in model.__dict__).put()
    except BaseException:
        _detach(handle)
        raise


def _detach(handle: Compression) -> None:
    """Has a handle's model run its forwards as before. The handle in the model goes last: what has come so far can be
    done again."""
    model = handle.model
    handle.closed = True
    await_no_longer(handle)
    forward = CompressedForward.of(model)
    if forward is not None:  # otherwise something has wrapped it
        forward.take_out()
    model.__dict__.pop(_HANDLE, None)


def compression(model: nn.Module) -> Compression:
    """Return the handle of a compressed model.

    For a model that was only converted by ``QModule`` or ``fewbit.convert``, the handle's report lists the tensors that
    exchanged layers stored in the first training forward.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is neither compressed nor converted.
    """
    _require_module(model)
    inner = compiled_module(model)
    if _HANDLE not in inner.__dict__ and is_converted(inner):
        return Converted(inner)
    return _handle_in(model).for_user()


def _handle_in(model: nn.Module) -> Compression:
    """The handle that lies in the model and does not keep it alive. See ``compression``."""
    _require_module(model)
    model = compiled_module(model)
    handle = model.__dict__.get(_HANDLE)
    if not isinstance(handle, Compression):
        inner = getattr(model, "module", None)  # of DistributedDataParallel, or of an engine
        if isinstance(inner, nn.Module) and isinstance(compiled_module(inner).__dict__.get(_HANDLE), Compression):
            raise ValueError(f"{type(model).__name__} is not compressed, but its module is; pass model.module")
        raise ValueError(
            f"{type(model).__name__} is not compressed; call compress_model(model, memory=0.5), or level='L1'"
        )
    if handle._model.alive is not model:
        raise ValueError(f"{type(model).__name__} is a shallow copy of a compressed model; use copy.deepcopy instead")
    return handle


def restore_model(model: Model) -> Model:
    """Undo ``compress_model`` completely, including the layers that it replaced, and return the same object.

    A later compression of the model, also in a block, starts at step 0, with the same noise, and without a plan. To
    continue instead, load the handle's ``state_dict`` into the next handle.

    A model that is not compressed, for example because it was restored before, is returned unchanged.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not compressed, but a module in it is, or it was converted by ``fewbit`` or
            ``qmodules``; or a replaced layer was parametrized since. The model is unchanged then.
    """
    _require_module(model)
    if _HANDLE not in compiled_module(model).__dict__:
        if others := _ways_back(compiled_module(model)):
            raise ValueError(f"{type(model).__name__} is not compressed; call {others} to undo its conversion")
        require_no_part(compiled_module(model), _HANDLE, "compressed")
        return model
    handle = _handle_in(model)
    inner = handle.model
    exchanged = Conversions.told(inner)
    Conversions.undo(inner)  # this may raise, and then everything is as it was
    handle._exchanged = exchanged
    with _lock:
        _steps.pop(inner, None)
    blocks.forget(inner)
    effectiveness_check.forget(inner)
    _detach(handle)
    return model


@contextmanager
def compress(model: nn.Module, level: str = "L1", *, strict: bool = False, **options: Any) -> Iterator[Compression]:
    """Compress a model for a block, for instance a whole step with its loss.

    ::

        with integrations.compress(model, level="L1") as handle:
            loss = criterion(model(x), y)
            loss.backward()
        print(handle.report())

    Arguments and errors are those of ``compress_model``. The handle stays valid after the block, for its report. In
    ``eval()`` and without gradients the block has no effect. A block is one step, with its backward in it or after it:
    open one block for each step of a loop. Blocks of one model with the same level and options adapt as the forwards of
    ``compress_model`` do: the second block is measured, and then every ``adapt_interval``-th. If a block has several
    backwards, the first one is measured. To resume a run, call ``handle.load_state_dict(state)`` in its first block,
    before the forward. ``handle.adapt(closure)``, outside of the block, measures at once, and runs each call of the
    closure in its own block.
    """
    model = compiled_module(model)
    for name in ("checkpoint", "memory", "time", "error", "stores", "plan", "fallback", "in_flight"):
        if name in options:
            raise ValueError(
                f"{name} must be left out of a block of integrations.compress, which does not follow a recomputation "
                f"plan; call integrations.compress_model(model, {name}=...) instead"
            )
    handle = new_handle(BlockCompression, model, level, strict, options)
    require_paths(model, handle.level.keep)
    handle.leave_step = partial(_steps.__setitem__, model)
    if not handle.active:
        yield handle
        return
    with entered(model):
        with _lock:
            handle.step = _steps.get(model, 0)
            undo_after_trial(partial(_steps.__setitem__, model, handle.step))
            _steps[model] = handle.step + 1
        try:
            with within(handle.session(measured=True)):
                yield handle
        finally:
            with _lock:
                _steps[model] = max(_steps.get(model, 0), handle.step)  # more, if a state was loaded


def new_handle(kind: type[Handle], model: nn.Module, level: str, strict: bool, options: Mapping[str, Any]) -> Handle:
    """A handle of that class, which is not attached yet. Arguments and errors are those of ``compress_model``."""
    _require_module(model)
    if not isinstance(strict, bool):
        raise TypeError(f"strict must be True or False, got {strict!r}")
    name = type(model).__name__
    if _HANDLE in model.__dict__:
        raise ValueError(f"{name} is compressed already; call integrations.restore_model(model) first")
    if in_block(model):
        raise ValueError(f"{name} is in a block of integrations.compress already; leave it first")
    handle = kind(model, level, resolve_level(level, options), strict)
    handle.step = _steps.get(model, 0)
    return handle


def _ways_back(model: nn.Module) -> str:
    """The calls that undo what was done to a model by other means than ``compress_model``; empty if nothing was."""
    found = [
        call
        for call, done in (
            ("integrations.fewbit.restore_model(model)", fewbit.is_converted(model)),
            ("integrations.qmodules.restore_model(model)", qmodules.is_converted(model)),
        )
        if done
    ]
    return " and ".join(found)


def _require_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")

"""``Training``: what is to fit: a model without elements, in its dtype and with its adapters, and its inputs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from integrations.api.compress import compression, restore_model
from integrations.capture.loss import Loss
from integrations.estimate.fit.adapters import with_adapters
from integrations.estimate.forecast import hf
from integrations.estimate.forecast.dtypes import Precision
from integrations.tracing.tensors import tensors_in

_BATCH, _TOKENS = 1, 512
IDS, EMBEDS, LABELS = "input_ids", "inputs_embeds", "labels"
"""Names of a language model's inputs."""


class Inputs(NamedTuple):
    """The inputs of a forward, by position and by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """What is to fit.

    Attributes:
        name: in words.
        model: in training mode, on ``meta``.
        args, kwargs: its inputs; numbers are on ``meta``, indices are not.
        loss: from the output to what is differentiated; ``None`` for the model's own.
        autocast: the dtype that operators compute in where it is not the weights'; ``None`` for theirs.
        together: whether an optimizer updates all parameters at once, as torch does on a GPU.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    loss: Loss | None
    autocast: torch.dtype | None
    together: bool

    @property
    def batch(self) -> int | None:
        """The size of the inputs' first dimension; ``None`` if they have none in common."""
        sizes = {tensor.shape[0] for tensor in self.tensors if tensor.dim()}
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def tokens(self) -> int | None:
        """The length of the sequences; ``None`` unless ``input_ids`` of (batch, tokens) or ``inputs_embeds`` of (batch,
        tokens, hidden) are given by name."""
        given = ((self.kwargs.get(IDS), 2), (self.kwargs.get(EMBEDS), 3))
        return next((one.shape[1] for one, dims in given if isinstance(one, Tensor) and one.dim() == dims), None)

    @property
    def positions(self) -> int | None:
        """How many tokens the model's configuration has positions for; ``None`` if it does not say so."""
        found = getattr(getattr(self.model, "config", None), "max_position_embeddings", None)
        return found if isinstance(found, int) and found > 0 else None

    @property
    def tensors(self) -> list[Tensor]:
        """The inputs that are tensors."""
        return tensors_in((self.args, dict(self.kwargs)))

    def of(self, model: nn.Module) -> Training:
        """The same of another model."""
        return replace(self, model=model)

    def sized(self, batch: int | None = None, tokens: int | None = None) -> Training:
        """The same with inputs of another size, which repeat or cut these."""
        length = self.tokens

        def resized(tensor: Any) -> Any:
            if not isinstance(tensor, Tensor):
                return tensor
            shape = list(tensor.shape)
            if batch is not None and shape:
                shape[0] = batch
            if tokens is not None and len(shape) > 1 and shape[1] == length:
                shape[1] = tokens
            return _resized(tensor, shape)

        args = tuple(map(resized, self.args))
        return replace(self, args=args, kwargs={name: resized(value) for name, value in self.kwargs.items()})

    def surroundings(self) -> AbstractContextManager[Any]:
        """A block in which its forward computes in the dtype of ``autocast``."""
        return nullcontext() if self.autocast is None else torch.autocast("cpu", dtype=self.autocast)


def join_inputs(args: Any, kwargs: Mapping[str, Any] | None) -> Inputs | None:
    """Return the inputs of a step; ``None`` if there are none.

    Raises:
        ValueError: both are mappings.
    """
    if args is None and kwargs is None:
        return None
    if isinstance(args, Mapping):
        if kwargs is not None:
            raise ValueError("kwargs must be None where args is a mapping; put all into one of them")
        return Inputs((), args)
    placed = () if args is None else tuple(args) if isinstance(args, tuple | list) else (args,)
    return Inputs(placed, kwargs or {})


def make_training(
    model: Any,
    sample: Inputs | None,
    batch: int | None,
    tokens: int | None,
    precision: Precision,
    lora: Any,
    loss: Loss | None,
    device: str | None,
) -> Training:
    """What ``fit`` is asked about; the arguments are its own, but ``sample``, the result of ``join_inputs``.

    Raises:
        TypeError: ``model`` is neither a module nor a configuration.
        ValueError: there is no sample and no size of one, a language model's sample has no labels, or ``tokens`` is
            given for a sample without sequences of tokens.
    """
    given: Any = None
    if isinstance(model, nn.Module):
        where = next((one.device.type for one in model.parameters()), "cpu")
        on = device or ("cuda" if where == "meta" else where)
        name, found = type(model).__name__, _without_elements(model)
        if sample is None:
            if not hasattr(model, "config"):
                raise ValueError(
                    f"args must be the inputs of a training step of the {name}, such as (images,) or "
                    "{'input_ids': ids, 'labels': ids}, got None"
                )
            given = hf.of_config(model.config, batch or _BATCH, tokens or _TOKENS)
    else:
        given = hf.of_config(_configuration(model), batch or _BATCH, tokens or _TOKENS)
        on, name, found = device or "cuda", given.name.partition(",")[0], given.model
        for module in found.modules():
            if hasattr(getattr(module, "config", None), "use_cache"):
                module.config.use_cache = False
    if sample is None:
        args, kwargs = given.args, dict(given.kwargs)
    else:
        args = tuple(map(_input, sample.args))
        kwargs = {name: _input(value) for name, value in sample.kwargs.items()}
    found = with_adapters(precision.of(found).train(), lora)
    training = Training(name, found, args, kwargs, loss, precision.autocast, on == "cuda")
    if sample is not None and tokens is not None and training.tokens is None:
        raise ValueError(
            f"tokens must be left out for these args of {name}, got {tokens}: it resizes {IDS} of (batch, tokens) or "
            f"{EMBEDS} of (batch, tokens, hidden), given by name"
        )
    training = training.sized(batch if sample is not None else None, tokens if sample is not None else None)
    _require_labels(training)
    return training


def _configuration(model: Any) -> Any:
    """A configuration of transformers: itself, or by its file or model type."""
    if isinstance(model, str | Path):
        return hf.configuration(str(model), {})
    if hf.is_configuration(model):
        return copy.deepcopy(model)
    raise TypeError(
        "model must be a torch.nn.Module, a configuration of transformers, a model type such as 'llama', or the path "
        f"of a config.json; got {type(model).__name__}"
    )


def _input(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    return value.to("meta") if value.is_floating_point() or value.is_meta else value.cpu()


def _require_labels(training: Training) -> None:
    model = training.model
    heads = getattr(model, "get_output_embeddings", None)
    if training.loss is not None or not callable(heads) or not isinstance(heads(), nn.Module):
        return
    known = inspect.signature(model.forward)
    if LABELS not in known.parameters:
        return
    with suppress(TypeError):  # the forward says what is wrong with its arguments
        given = known.bind(*training.args, **training.kwargs).arguments
        if given.get(LABELS) is None:
            raise ValueError(
                f"args must have labels, with which {training.name} computes its loss, got {', '.join(given)}; "
                "add labels=, as in {'input_ids': ids, 'labels': ids}, or give criterion=, a function of the output"
            )


def _without_elements(model: nn.Module) -> nn.Module:
    """A copy of the model on ``meta``, tied where the model is, and as it is where it is not compressed."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and not tensor.is_floating_point() and not isinstance(tensor, nn.Parameter):
            continue  # indices decide which way a forward takes
        empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    found = copy.deepcopy(model, memo)
    with suppress(ValueError):  # it is not compressed
        compression(found)
        restore_model(found)
    return found


def _resized(tensor: Tensor, shape: list[int]) -> Tensor:
    if list(tensor.shape) == shape:
        return tensor
    if tensor.device.type == "meta":
        return torch.empty(shape, dtype=tensor.dtype, device="meta", requires_grad=tensor.requires_grad)
    times = [-(-size // max(1, old)) for size, old in zip(shape, tensor.shape, strict=True)]
    return tensor.repeat(times)[tuple(slice(size) for size in shape)].contiguous()

"""``make_stages``: the trainings of the stages of a pipeline.

The stages are those of ``torch.distributed.pipelining.PipelineStage``, with as many layers each, and the schedule is
``Schedule1F1B``. The last stage returns logits, and the schedule computes the loss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from integrations.capture.loss import Loss
from integrations.estimate.fit.layers import Blocks, shortened
from integrations.estimate.fit.ranks import Ranks
from integrations.estimate.fit.trainings import EMBEDS, IDS, LABELS, Training
from integrations.planner.optimizers import nbytes

_RULE = "pp must be 1"


@dataclass(frozen=True)
class Stage:
    """A stage of a pipeline, or the whole of a training without one.

    Attributes:
        training: of one micro-batch; stages that are alike have the same.
        waiting: how many micro-batches wait for their backward at most.
        inputs: bytes of inputs, and of the buffers for what other stages send.
    """

    training: Training
    waiting: int
    inputs: int


def make_stages(training: Training, ranks: Ranks) -> list[Stage]:
    """Return the stages of a training, the first one first.

    Each stage has a buffer for each micro-batch that it receives and for each gradient that it receives, as
    ``PipelineStage`` allocates them. The gradient that it sends is held until the next one is.

    Raises:
        ValueError: the model is no causal language model of transformers with a plan for pipelines, its layers
            differ, their number is not divisible by ``ranks.pp``, or the inputs are more than tokens and labels.
    """
    own = sum(map(nbytes, training.tensors))
    if ranks.pp == 1:
        return [Stage(training, 1, own)]
    names = _Names.of(training, ranks.pp)
    first, between, last = (
        names.cut(training, ranks.pp, *ends) for ends in ((True, False), (False, False), (False, True))
    )
    hidden = nbytes(between.kwargs[EMBEDS])
    stages = []
    for number in range(ranks.pp):
        at_start, at_end = number == 0, number == ranks.pp - 1
        received = ranks.micro_batches * sum(map(nbytes, (first if at_start else between).tensors))
        gradients = hidden * ((not at_start) + (not at_end) * (ranks.micro_batches - 1))  # one more is in the capture
        one = first if at_start else last if at_end else between
        stages.append(Stage(one, min(ranks.micro_batches, ranks.pp - number), received + gradients))
    return stages


@dataclass(frozen=True)
class _Names:
    """Where the parts of a model are: paths inside of its base model."""

    embedding: str
    layers: str
    size: int
    norm: str

    @classmethod
    def of(cls, training: Training, pp: int) -> _Names:
        model: Any = training.model
        base = getattr(model, "base_model", None)
        plan = getattr(getattr(base, "config", None), "base_model_pp_plan", None) or {}
        found = [name for name in plan if isinstance(getattr(base, name, None), nn.Module)]
        lists = [name for name in found if isinstance(getattr(base, name), nn.ModuleList)]
        if len(lists) != 1 or len(found) != 3 or base is model or not hasattr(model, "loss_function"):
            raise ValueError(
                f"{_RULE} for this {training.name}, got {pp}: it is no causal language model of transformers whose "
                "configuration has a base_model_pp_plan of an embedding, layers and a norm; use fsdp= and tp="
            )
        if training.loss is not None:
            raise ValueError(f"criterion must be None with pp={pp}: stages are known for the loss of {training.name}")
        if training.args or set(training.kwargs) - {IDS, LABELS}:
            given = [*map(type, training.args), *training.kwargs]
            raise ValueError(f"args must be {IDS} and {LABELS} alone with pp={pp}, by name, got {given}")
        embedding, norm = (name for name in found if name not in lists)
        size = len(getattr(base, lists[0]))
        if size % pp:
            fitting = [str(count) for count in range(1, size + 1) if size % count == 0]
            raise ValueError(f"pp must divide the number of layers, {size}, got {pp}; use one of {', '.join(fitting)}")
        return cls(embedding, lists[0], size, norm)

    def cut(self, training: Training, pp: int, first: bool, last: bool) -> Training:
        """Return the training of a stage."""
        path = next(path for path, module in training.model.named_modules() if module is self._layers(training.model))
        model: Any = shortened(training.model, Blocks(path, self.size), self.size // pp)
        base = model.base_model
        if not first:
            setattr(base, self.embedding, None)
        if not last:
            setattr(base, self.norm, nn.Identity())
        ids: Tensor = training.kwargs[IDS]
        kwargs = {IDS: ids}
        if not first:
            dtype = next(one.dtype for one in model.parameters() if one.is_floating_point())
            shape = (*ids.shape, base.config.hidden_size)
            kwargs = {EMBEDS: torch.empty(shape, dtype=dtype, device="meta", requires_grad=True)}
        loss = _loss_of_logits(model) if last else None
        return replace(training, model=model if last else base, kwargs=kwargs, loss=loss)

    def _layers(self, model: Any) -> nn.Module:
        found: nn.Module = getattr(model.base_model, self.layers)
        return found


def _loss_of_logits(model: Any) -> Loss:
    """Return the loss that the schedule computes from the logits of a language model, by the model's own function."""
    function, words = model.loss_function, model.config.vocab_size

    def loss(output: Any) -> Any:
        labels = torch.zeros(output.logits.shape[:-1], dtype=torch.int64, device=output.logits.device)
        return function(logits=output.logits, labels=labels, vocab_size=words)

    return loss

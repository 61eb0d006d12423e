"""A model with a batch for it: ``Subject``, which is trained in every way, and ``Case``, which is its loss alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import MissingLibrary


def needs(name: str, extra: str = "models") -> Any:
    """Import a library that only some models need, or some ways to train.

    Args:
        name: of the module.
        extra: of this package, that brings it.

    Raises:
        MissingLibrary: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # torchvision raises the latter beside a torch that is not its own
        raise MissingLibrary(
            f"{name} cannot be imported ({error}); pip install actcore-bench[{extra}], or leave out what needs it"
        ) from error


@dataclass(frozen=True)
class Subject:
    """A model in training mode, with random weights, and a batch for it.

    Attributes:
        model: takes ``inputs``.
        inputs: by name or in order.
        loss: of the model's output.
        what: in words.
        blocks: that a person would checkpoint one by one; none where there are none.
        around: what forward and loss run in, such as autocast.
        tf32: whether products of float32 matrices may round to TensorFloat-32, as convolutions on CUDA do by default.
    """

    model: nn.Module
    inputs: tuple[Tensor, ...] | Mapping[str, Tensor]
    loss: Callable[[object], Tensor]
    what: str
    blocks: list[nn.Module] = field(default_factory=list)
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    tf32: bool = False

    def step(self, forward: Callable[..., object]) -> Tensor:
        """The loss of a forward, which stands for the model's."""
        given = self.inputs
        with self.around():
            return self.loss(forward(**given) if isinstance(given, Mapping) else forward(*given))

    @contextmanager
    def precisely(self) -> Iterator[None]:
        """Torch's setting of float32 products is the subject's: a global one, and backward needs it, too."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high" if self.tf32 else before)
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class Case:
    """A model in training mode, and a function that computes its loss on one batch.

    Attributes:
        model: with random weights.
        loss: forward of the model.
        what: in words.
    """

    model: nn.Module
    loss: Callable[[], Tensor]
    what: str


def entropy(y: Tensor) -> Callable[[object], Tensor]:
    """The cross-entropy of an output with classes."""

    def loss(output: object) -> Tensor:
        assert isinstance(output, Tensor)
        return F.cross_entropy(output, y)

    return loss


def own_loss(output: object) -> Tensor:
    """The loss that a model of transformers computes itself."""
    loss = getattr(output, "loss", None)
    assert isinstance(loss, Tensor)
    return loss


def channels_last(subject: Subject) -> Subject:
    """The subject with images and kernels in the order in which convolutions on a CPU copy nothing."""
    subject.model.to(memory_format=torch.channels_last)
    given = subject.inputs
    assert isinstance(given, tuple)
    inputs = tuple(one.to(memory_format=torch.channels_last) if one.dim() == 4 else one for one in given)
    return replace(subject, inputs=inputs)


def resnet_blocks(model: Any) -> list[nn.Module]:
    """Return the residual blocks of timm's ResNet, in order."""
    return [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]

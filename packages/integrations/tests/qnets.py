"""What the tests of the Q-layers share: one step of a layer, and the layer beside its Q-layer."""

import copy

import torch
from torch import nn

from integrations import qmodules
from integrations.qmodules.levels import resolve_level

from .nets import normal

EIGHT = resolve_level("L2", {"bits": (8,)})


def q_layer(layer, level=EIGHT):
    """The Q-layer of a copy of a layer of torch."""
    kind = getattr(qmodules, f"Q{type(layer).__name__}")
    made = kind.from_module(copy.deepcopy(layer), level)
    made.precision.name = "layer"  # which names its noise: the same in whatever order tests run
    return made


def step(layer, *inputs, **kwargs):
    """The output, and the gradients of a random sum of it by the inputs and the parameters."""
    inputs = [x.detach().clone(memory_format=torch.preserve_format) for x in inputs]
    leaves = [x.requires_grad_() for x in inputs if x.is_floating_point()]
    layer.zero_grad()
    torch.manual_seed(0)
    output = layer(*inputs, **kwargs)
    (output * normal(*output.shape, seed=9, dtype=output.dtype).to(output.device)).sum().backward()
    return output.detach(), [x.grad for x in leaves] + [p.grad.clone() for p in layer.parameters()]


def errors(expected, found):
    """Relative errors in the Euclidean norm, one a gradient."""
    return [((a - b).norm() / a.norm()).item() for a, b in zip(expected, found, strict=True)]


def kept_bytes(output, *others):
    """Bytes of all storages that the graph of ``output`` keeps, but for those of ``others`` and of parameters."""
    skip = {tensor.untyped_storage()._cdata for tensor in others}
    seen, nodes, todo = {}, set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        todo += [other for other, _ in node.next_functions]
        values = [getattr(node, name) for name in dir(node) if name.startswith("_saved")]
        for tensor in [*values, *(getattr(node, "saved_tensors", None) or ())]:
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, nn.Parameter):
                storage = tensor.untyped_storage()
                seen[storage._cdata] = storage.nbytes()
    return sum(size for key, size in seen.items() if key not in skip)


class Residual(nn.Module):
    """A block whose input two layers save."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(8, 16, 3, padding=1)
        self.short = nn.Conv2d(8, 16, 1)

    def forward(self, x):
        x = self.relu(x)
        return self.conv1(x) + self.short(x)

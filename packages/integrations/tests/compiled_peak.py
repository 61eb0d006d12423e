"""The bytes of a step that torch compiles, by counting."""

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop

from .recompute_reference import LiveBytes, Ones


def compiled_peak(model, args):
    """The most bytes that are alive during a step that makes its gradients, beside these."""
    counting = aot_autograd(
        fw_compiler=_counted, bw_compiler=_counted, partition_fn=min_cut_rematerialization_partition
    )
    function = torch.compile(model, backend=counting)
    for _ in range(2):  # the first one pays for the compiler
        model.zero_grad()
        _live[:] = [LiveBytes()]
        Ones.apply(function(*args)).backward()
    return _live[0].peak - sum(parameter.grad.nbytes for parameter in model.parameters())


_live = []  # what counts in the graphs that run


def _counted(graph, inputs):
    run = boxed_nop(graph, inputs)

    def counted(args):
        with _live[0]:
            return run(args)

    counted._boxed_call = True
    return counted

"""The ways to a compiled model, and a step of one.

``aot_eager`` runs the graphs as AOTAutograd makes them.
"""

import torch

import integrations

from .nets import normal

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


def compiled(model, **options):
    return torch.compile(model, **{"backend": "aot_eager", **options})


def trained(model, function, *inputs):
    """One step's gradients of the model, by name, through what was compiled of it."""
    torch.manual_seed(1)
    model.zero_grad()
    function(*(inputs or (X,))).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def make_report(model):
    return integrations.compression(model).report()


def way_compressed_then_compiled(model, backend="aot_eager", **options):
    return compiled(integrations.compress_model(model, **options), backend=backend)


def way_compiled_in_place(model, **options):
    integrations.compress_model(model, **options).compile(backend="aot_eager")
    return model


def way_compiled_then_compressed(model, **options):
    return integrations.compress_model(compiled(model), **options)


def way_compressed_inside(model, **options):
    function = compiled(model)
    integrations.compress_model(model, **options)
    return function


def way_function(model, **options):
    integrations.compress_model(model, **options)
    return compiled(lambda x: model(x * 1) * 1)


WAYS = [
    way_compressed_then_compiled,
    way_compiled_in_place,
    way_compiled_then_compressed,
    way_compressed_inside,
    way_function,
]

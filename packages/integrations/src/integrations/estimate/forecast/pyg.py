"""Models and layers of PyTorch Geometric, by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from integrations.estimate.forecast.subject import Subject, made, numbers


def subject(
    name: str,
    nodes: int,
    edges: int,
    features: int,
    hidden: int,
    classes: int,
    layers: int,
    elements: bool = False,
    **options: Any,
) -> Subject:
    """A class of ``torch_geometric.nn``, a model such as GCN or a layer such as SAGEConv, and a graph for it.

    The edges are drawn at random, always the same: how they are spread changes no number of bytes.

    Args:
        name: of the class.
        nodes, edges: of the graph.
        features: of a node.
        hidden: channels of a model's hidden layers; a layer has as many outputs.
        classes: outputs of a model.
        layers: of a model.
        elements: whether model and features have any; without, they take no memory.
        **options: for the class.

    Raises:
        ImportError: torch_geometric is not there.
        ValueError: it has no such class, or one that takes no graph.
    """
    try:
        from torch_geometric import nn as geometric
    except ImportError as error:
        raise ImportError("models of PyG need torch_geometric: pip install actcore-integrations[pyg]") from error
    kind: Any = getattr(geometric, name, None)
    if not inspect.isclass(kind):
        raise ValueError(f"--pyg must be a class of torch_geometric.nn, such as GCN, GAT or SAGEConv, got {name!r}")
    sizes: dict[str, Any] = {"in_channels": features}
    if issubclass(kind, geometric.models.basic_gnn.BasicGNN):
        sizes |= {"hidden_channels": hidden, "num_layers": layers, "out_channels": classes}
    elif issubclass(kind, geometric.MessagePassing) and "out_channels" in inspect.signature(kind).parameters:
        sizes["out_channels"] = hidden
    else:
        raise ValueError(
            f"--pyg must be a layer with out_channels, or a model such as GCN, and {name} is neither: make it in "
            "Python, and call integrations.forecast(model, (x, edge_index))"
        )
    chosen: Any = kind
    model = made(lambda: chosen(**{**sizes, **options}), elements)
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(nodes, (2, edges), generator=generator)
    inputs = (numbers((nodes, features), elements), edge_index)
    return Subject(f"{name} (PyG), {nodes:,} nodes, {edges:,} edges", model, inputs)

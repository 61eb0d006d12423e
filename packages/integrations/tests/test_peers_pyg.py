"""Every layer of PyG that a generic call can make: one step without rounding, bit for bit, and one in 8 bits."""

import inspect

import pytest
import torch
from torch import nn

from .nets import EIGHT_BITS, assert_same, normal
from .peers.one_step import compare, error

layers = pytest.importorskip("torch_geometric.nn.conv", reason="torch-geometric is not installed")

NODES, EDGES, WIDTH = 40, 200, 16
_drawn = torch.Generator().manual_seed(1)


def network(inputs=WIDTH, outputs=WIDTH):
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


# What layers ask for, by the names that PyG gives it.
SIZES = {
    **dict.fromkeys(("in_channels", "out_channels", "channels", "hidden_channels"), WIDTH),
    **dict.fromkeys(("K", "num_layers", "filter_size", "kernel_size"), 2),
    **dict.fromkeys(("edge_dim", "edge_type_emb_dim", "edge_attr_emb_dim", "space_dimensions"), 4),
    "num_relations": 3,
    "num_edge_types": 3,
    "num_node_types": 2,
    "alpha": 0.1,
    "propagate_dimensions": 8,
    "k": 4,
    "first_aggr": True,
    "aggregators": ["mean", "max", "std"],
    "scalers": ["identity", "amplification"],
    "deg": torch.tensor([0, 5, 10, 10, 10, 5]),
    "conv": lambda: layers.SAGEConv(WIDTH, WIDTH),
    "nn": network,
    "dim": 4,
}
OWN_SIZES = {  # where the same name stands for something else
    "EdgeConv": {"nn": lambda: network(2 * WIDTH)},
    "DynamicEdgeConv": {"nn": lambda: network(2 * WIDTH)},
    "NNConv": {"nn": lambda: network(4, WIDTH * WIDTH), "edge_dim": None},
    "GINEConv": {"edge_dim": 4},
    "XConv": {"dim": 3},
    "PointGNNConv": {"mlp_h": lambda: network(WIDTH, 3), "mlp_f": lambda: network(WIDTH + 3), "mlp_g": network},
    "PPFConv": {"local_nn": lambda: network(WIDTH + 4)},
    "PointNetConv": {"local_nn": lambda: network(WIDTH + 3)},
    "SuperGATConv": {"add_self_loops": False},
}
INPUTS = {
    "edge_index": torch.randint(NODES, (2, EDGES), generator=_drawn),
    "edge_attr": normal(EDGES, 4, seed=2).sigmoid(),  # splines take coordinates from 0 to 1
    "edge_type": torch.randint(3, (EDGES,), generator=_drawn),
    "node_type": torch.randint(2, (NODES,), generator=_drawn),
    "pos": normal(NODES, 3, seed=4),
    "normal": nn.functional.normalize(normal(NODES, 3, seed=5), dim=1),
    "x_0": normal(NODES, WIDTH, seed=6),
}
INPUTS |= {"pos_edge_index": INPUTS["edge_index"], "neg_edge_index": INPUTS["edge_index"].flip(1)}
INPUTS |= {"hyperedge_index": INPUTS["edge_index"]}
OPTIONAL = {  # inputs that have a default, and are needed where a layer was made with that size
    "num_relations": "edge_type",
    "edge_dim": "edge_attr",
    "dim": "edge_attr",
}
LEFT_OUT = {
    "MessagePassing": "is the base class of the others",
    "HeteroConv": "takes dictionaries: test_ecosystems.py, and the sweep of bench",
    "HGTConv": "takes dictionaries: the sweep of bench",
    "HANConv": "takes dictionaries",
    "DNAConv": "takes what all layers before it have made",
    "WLConv": "counts colours of nodes, without a gradient",
    "FusedGATConv": "takes a graph in three forms, and CUDA",
    "MeshCNNConv": "takes the four neighbours of each edge of a mesh",
}


class Between(nn.Module):
    """A layer behind a linear one, so that there is a gradient through it where it has no parameters."""

    def __init__(self, layer, inputs):
        super().__init__()
        self.before, self.layer, self.inputs = nn.Linear(WIDTH, WIDTH), layer, inputs

    def forward(self, x):
        return self.layer(self.before(x).relu(), **self.inputs)


def made(name):
    """A layer and its inputs but for the first, by the names of its arguments."""
    kind, own = getattr(layers, name), OWN_SIZES.get(name, {})
    asked = inspect.signature(kind.__init__).parameters
    needed = {key for key, one in asked.items() if one.default is one.empty and one.kind == one.POSITIONAL_OR_KEYWORD}
    sizes = {key: own[key] if key in own else SIZES[key] for key in (needed - {"self"}) | own.keys()}
    layer = kind(**{key: value() if callable(value) else value for key, value in sizes.items() if value is not None})
    taken = inspect.signature(layer.forward).parameters
    inputs = {key for key, one in taken.items() if one.default is one.empty and key in INPUTS}
    inputs |= {OPTIONAL[key] for key in sizes.keys() & OPTIONAL.keys()} & taken.keys()
    return layer, {key: INPUTS[key] for key in inputs}


@pytest.mark.parametrize("name", [name for name in layers.__all__ if name not in LEFT_OUT])
def test_a_layer(name):
    torch.manual_seed(0)
    try:
        model = Between(*made(name))
        with torch.no_grad():
            model(x := normal(NODES, WIDTH))
    except ImportError as missing:
        pytest.skip(f"{name} needs another library: {missing}")
    plain, off, bits = compare(model, lambda one: one(x))
    assert torch.equal(off[0], plain[0])
    assert_same(plain[1], off[1])
    assert torch.equal(bits[0], plain[0])  # what is stored is read in backward alone
    assert error(plain[1], bits[1]) < 2 * EIGHT_BITS

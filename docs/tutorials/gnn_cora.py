"""GCN, GraphSAGE and GAT on Cora: one line for models of PyTorch Geometric.

What a graph network keeps depends on its convolution more than on its size, and so does what can be saved of it:

    compress_model(model, level="L1")

    GCN       multiplies each message, of which there is one for each edge, by a number: the messages are kept.
    GraphSAGE averages before it multiplies: the average of the neighbours' features is kept, which is as wide as these.
    GAT       weighs each edge in each of its heads: weights, logits and messages of all edges are kept, and most of its
              memory is theirs.

Level L1 is the one to begin with: inputs of linear layers and messages in 4 or 8 bits, the signs of ReLUs and dropout's
masks in one, exactly. Node features and edge_index, which you hold anyway, stay as they are. Sampled batches
(NeighborLoader) need nothing else.

Run it:

    pip install "actcore-integrations[pyg]" scipy
    python docs/tutorials/gnn_cora.py              # a minute or two on 2 cores
    python docs/tutorials/gnn_cora.py --quick      # seconds, two epochs: what CI runs

Each report lists the model's parts. Look at the column "operators": `index_select` gathers a row for each edge, and
`mul` weighs it; these are the messages. Cora is small, so nearly all of the time is Python's: a saved tensor costs some
microseconds, whatever its size. On a graph of millions of edges it is the arithmetic.
"""

import argparse
import os
import time
from pathlib import Path

import rich
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.datasets import FakeDataset, Planetoid
from torch_geometric.io import read_planetoid_data
from torch_geometric.nn import GAT, GCN, GraphSAGE
from torch_geometric.transforms import NormalizeFeatures

from integrations.pyg import compress_model, compression

OPTIONS = {GAT: {"heads": 8}}  # of 8 features each


def main() -> None:
    """Trains each network twice from the same weights, and prints both runs."""
    parser = argparse.ArgumentParser(description="Graph networks on Cora, with compressed activations and without.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two epochs, and no download")
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps

    graph = load(options.quick)
    for kind in (GCN, GraphSAGE, GAT):
        plain, plain_seconds = train(new_model(kind, graph), graph, steps)

        model = new_model(kind, graph)
        compress_model(model, level="L1")  # the one line
        model, seconds = train(model, graph, steps)
        report = compression(model).report()

        print(f"\n{kind.__name__}")
        rich.print(report.table(depth=2))
        for name, net, kept, spent in (
            ("as it is:  ", plain, report.original_bytes, plain_seconds),
            ("compressed:", model, report.stored_bytes, seconds),
        ):
            print(f"{name}  accuracy {accuracy(net, graph):.1%}, {kept:,} bytes kept for backward, {spent:.0f} s")


def new_model(kind: type[nn.Module], graph: Data) -> nn.Module:
    """Two layers with random weights, always the same."""
    torch.manual_seed(0)
    classes = int(graph.y.max()) + 1
    return kind(graph.num_features, 64, num_layers=2, out_channels=classes, dropout=0.5, **OPTIONS.get(kind, {}))


def train(model: nn.Module, graph: Data, steps: int) -> tuple[nn.Module, float]:
    """An ordinary loop over the whole graph: the model, and the seconds that it took."""
    torch.manual_seed(1)  # the same dropout in both runs
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model.train()
    start = time.perf_counter()
    for _ in range(steps):
        out = model(graph.x, graph.edge_index)
        loss = nn.functional.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, time.perf_counter() - start


@torch.no_grad()
def accuracy(model: nn.Module, graph: Data) -> float:
    """On the nodes for test. In ``eval()`` a compressed model runs as any other."""
    model.eval()
    right = model(graph.x, graph.edge_index).argmax(1) == graph.y
    return right[graph.test_mask].float().mean().item()


def load(quick: bool) -> Data:
    """Cora, with the public split: 20 nodes of each class to train on, 1,000 to test with."""
    raw = Path(os.environ.get("ACTCORE_DATA", "."), "planetoid/Cora/raw")
    if raw.is_dir():
        return NormalizeFeatures()(read_planetoid_data(str(raw), "Cora"))
    if not quick:
        return Planetoid("planetoid", "Cora", transform=NormalizeFeatures())[0]
    print("A random graph stands in for Cora, which is not downloaded for a quick run.")
    [graph] = FakeDataset(num_graphs=1, avg_num_nodes=1000, avg_degree=4, num_channels=64, num_classes=7)
    graph.train_mask = torch.arange(graph.num_nodes) % 5 == 0
    graph.test_mask = ~graph.train_mask
    return graph


if __name__ == "__main__":
    main()

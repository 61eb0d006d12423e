"""Models of any size: ResNets and Swin transformers of timm's parts, BERTs, GCNs and Llamas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.decoders import Sizes, subject
from bench.models.subject import Subject, entropy, needs, own_loss, resnet_blocks
from bench.models.transformers import transformer


class GraphLayer(nn.Module):
    """A convolution with all that follows it before the next one.

    Args:
        convolution: called with features and graph.
        *rest: modules called with features, in this order.
    """

    def __init__(self, convolution: nn.Module, *rest: nn.Module) -> None:
        super().__init__()
        self.convolution = convolution
        self.rest = nn.Sequential(*rest)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """``Float["nodes features"]`` of the same with other features."""
        found: Tensor = self.rest(self.convolution(x, graph))
        return found


class GraphLayers(nn.Module):
    """What PyG's ``BasicGNN`` computes, made of its modules.

    PyG has the convolutions in one list, the norms in another, and one activation and dropout for all. Who checkpoints
    its convolutions alone keeps what the norms, activations and dropouts between them save, which is most of it.

    Args:
        model: a ``BasicGNN`` with its defaults of ``jk`` (none) and ``act_first`` (norms come before activations).
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        *inner, last = model.convs
        between = [
            GraphLayer(convolution, norm, model.act, model.dropout)
            for convolution, norm in zip(inner, model.norms, strict=False)  # the last layer's norm is never called
        ]
        self.layers = nn.ModuleList([*between, GraphLayer(last)])

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """``Float["nodes classes"]`` of ``Float["nodes features"]``."""
        for layer in self.layers:
            x = layer(x, graph)
        return x


RESNET_50, RESNET_152 = (3, 4, 6, 3), (3, 8, 36, 3)
SWIN_TINY, SWIN_SMALL = (2, 2, 6, 2), (2, 2, 18, 2)

_BASE_WIDTH = 64  # that timm, as torchvision, counts a bottleneck's width by


@dataclass(frozen=True)
class Images:
    """Sizes of everything that is not searched.

    Attributes:
        batch: images in a step.
        size: height and width of an image.
        channels: of a ResNet's first stage, 64 in He et al.; the others have 2, 4 and 8 times as many.
        embedding: of a Swin transformer's first stage, 96 in Liu et al.; the others likewise.
        heads: of its attention in the first stage, 3 in Liu et al.
        window: of its attention; ``size / 4`` must be a multiple.
        classes: that images are told apart by.
    """

    batch: int
    size: int
    channels: int
    embedding: int
    heads: int
    window: int
    classes: int


def resnet(
    images: Images,
    stages: Sequence[int],
    *,
    batch: int | None = None,
    size: int | None = None,
    width: int = _BASE_WIDTH,
) -> Subject:
    """A bottleneck ResNet (He et al., CVPR 2016).

    Args:
        images: sizes of all that the others leave out.
        stages: blocks of each of the four stages.
        batch, size: of the images.
        width: of the bottlenecks, in parts of 1/64 of their stage's channels: 128 is a Wide ResNet's (Zagoruyko and
            Komodakis, BMVC 2016).

    Raises:
        MissingLibrary: timm is not installed.
    """
    resnets = needs("timm.models.resnet")
    model = resnets.ResNet(
        resnets.Bottleneck,
        tuple(stages),
        num_classes=images.classes,
        stem_width=images.channels,
        channels=tuple(images.channels * factor for factor in (1, 2, 4, 8)),
        base_width=width,
        # A branch that is multiplied by 0, as timm begins, has no gradient, and an adaptive level nothing to weigh.
        zero_init_last=False,
    )
    return _classifier(model, images, batch or images.batch, size or images.size, resnet_blocks(model))


def scaled_stages(depth: int) -> tuple[int, ...]:
    """Blocks of each stage of a bottleneck ResNet of ``depth`` layers, in ResNet-152's proportions.

    Args:
        depth: three layers a block and two besides: 152 has 50 blocks. At least 14, which has one block a stage.
    """
    blocks, proportions = (depth - 2) // 3, [stage / sum(RESNET_152) for stage in RESNET_152]
    exact = [max(1.0, blocks * part) for part in proportions]
    stages = [int(one) for one in exact]
    # What is left goes to the stages that rounding down took most of; what is too much comes from the longest.
    for place in sorted(range(4), key=lambda one: stages[one] - exact[one])[: max(0, blocks - sum(stages))]:
        stages[place] += 1
    while sum(stages) > blocks:
        stages[stages.index(max(stages))] -= 1
    return tuple(stages)


def swin(images: Images, depths: Sequence[int], *, batch: int) -> Subject:
    """A Swin transformer (Liu et al., ICCV 2021), with stochastic depth as there.

    Args:
        images: sizes of all else.
        depths: blocks of each of the four stages.
        batch: images in a step.

    Raises:
        MissingLibrary: timm is not installed.
    """
    model = needs("timm.models.swin_transformer").SwinTransformer(
        img_size=images.size,
        embed_dim=images.embedding,
        depths=tuple(depths),
        num_heads=tuple(images.heads * factor for factor in (1, 2, 4, 8)),
        window_size=images.window,
        num_classes=images.classes,
    )
    return _classifier(model, images, batch, images.size, [block for stage in model.layers for block in stage.blocks])


def _classifier(model: nn.Module, images: Images, batch: int, size: int, blocks: list[nn.Module]) -> Subject:
    y = torch.randint(images.classes, (batch,))

    what = f"{type(model).__name__}, {batch} at {size} x {size}"
    return Subject(model, (torch.randn(batch, 3, size, size),), entropy(y), what, blocks)


@dataclass(frozen=True)
class Bert:
    """A BERT (Devlin et al., NAACL 2019) that tells two classes of sentences apart, and its batch.

    Attributes:
        layers, hidden, heads, intermediate: of the encoder; ``heads`` must divide ``hidden``.
        batch: sentences in a step.
        length: tokens of a sentence.
        vocabulary: tokens that there are.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    batch: int
    length: int
    vocabulary: int


def bert(sizes: Bert) -> Subject:
    """The model, with dropout 0.1 as there, and a batch.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    model = transformer(
        "BertForSequenceClassification",
        sizes.layers,
        sizes.hidden,
        sizes.heads,
        sizes.vocabulary,
        inner=sizes.intermediate,
        max_position_embeddings=max(512, sizes.length),
    )
    shape = (sizes.batch, sizes.length)
    inputs = {"input_ids": torch.randint(sizes.vocabulary, shape), "labels": torch.randint(2, (sizes.batch,))}
    what = f"BERT, {sizes.layers} layers of {sizes.hidden}, {sizes.batch} x {sizes.length} tokens"
    return Subject(model, inputs, own_loss, what, list(model.bert.encoder.layer))


@dataclass(frozen=True)
class Graph:
    """A GCN (Kipf and Welling, ICLR 2017) and its graph.

    Attributes:
        layers, hidden: of the network.
        nodes, edges: of the graph; edges are drawn uniformly.
        features: of a node.
        classes: of nodes.
    """

    layers: int
    hidden: int
    nodes: int
    edges: int
    features: int
    classes: int


def gcn(sizes: Graph) -> Subject:
    """The network, with batch norm and dropout 0.5 as GACT's benchmark has them.

    The normalised graph is one sparse matrix, made once: a layer multiplies with it, and holds no message of an edge.

    Raises:
        MissingLibrary: torch-geometric is not installed.
    """
    model = GraphLayers(
        needs("torch_geometric.nn").GCN(
            sizes.features,
            sizes.hidden,
            sizes.layers,
            sizes.classes,
            dropout=0.5,
            norm="batch_norm",
            normalize=False,  # the graph is
        )
    )
    edges, weights = needs("torch_geometric.nn.conv.gcn_conv").gcn_norm(
        torch.randint(sizes.nodes, (2, sizes.edges)), None, sizes.nodes
    )
    graph = needs("torch_geometric.utils").to_torch_csr_tensor(edges, weights, size=(sizes.nodes, sizes.nodes))
    x, y = torch.randn(sizes.nodes, sizes.features), torch.randint(sizes.classes, (sizes.nodes,))

    what = f"GCN, {sizes.layers} layers of {sizes.hidden}, {sizes.nodes:,} nodes, {sizes.edges:,} edges"
    return Subject(model, (x, graph), entropy(y), what, list(model.layers))


def llama(sizes: Sizes, tokens: int) -> Subject:
    """The model in 16 bits, and one row of so many tokens.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    return subject("llama", tokens, sizes)


def tiny() -> Subject:
    """One in which each way has something to do."""
    return llama(Sizes(64, 16, 1, 2, 32), 8)

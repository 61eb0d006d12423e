"""How networks are built and trained: what the command line can change."""

from __future__ import annotations

from dataclasses import dataclass

HIDDEN = 256
LAYERS = 3
DROPOUT = 0.5
HEADS = 4
NORMS = ("none", "batch")
ADAPT_INTERVAL = 20  # steps; GACT's for its GNNs

# GCNII's on Cora (Chen et al., ICML 2020, table 6), but for its depth of 64: a quarter of it is as good within a point.
DEEP_HIDDEN, DEEP_LAYERS, DEEP_DROPOUT, ALPHA, THETA = 64, 16, 0.6, 0.1, 0.5


@dataclass(frozen=True)
class Recipe:
    """What of building and training can be chosen.

    Attributes:
        hidden, layers: widths and depth; ``None``: the model's own, 256 and 3, and of GCNII 64 and 16.
        heads: of GAT's hidden layers; each has ``hidden // heads`` features. GACT's has 3.
        norm: one of ``NORMS``, between a hidden convolution and its activation. GACT's networks have ``"batch"``.
        adapt_interval: steps from one adaptation of an adaptive level to the next.
        sample: nodes of the subgraphs to train on, at most; ``None`` trains on the whole graph.
    """

    hidden: int | None = None
    layers: int | None = None
    heads: int = HEADS
    norm: str = "none"
    adapt_interval: int = ADAPT_INTERVAL
    sample: int | None = None

    def words(self) -> dict[str, float | str]:
        """By name of the setting."""
        return {
            "layers": self.layers or LAYERS,
            "hidden": self.hidden or HIDDEN,
            "dropout": DROPOUT,
            "norm": self.norm,
            "GAT's heads": self.heads,
            "GCNII": f"{self.layers or DEEP_LAYERS} layers of {self.hidden or DEEP_HIDDEN}, dropout {DEEP_DROPOUT:g}",
            "adapt interval": self.adapt_interval,
            "sample": "none" if self.sample is None else f"{self.sample:,} nodes",
        }


DEFAULT = Recipe()

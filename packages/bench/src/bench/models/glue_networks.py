"""The networks: a tiny BERT that is trained from scratch, and BERT and RoBERTa as they were published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.data.glue import NotAtHand
from bench.models.data.mrpc import PADDING
from bench.models.subject import needs
from bench.models.transformers import transformer

DROPOUT = 0.1  # BERT's own


@dataclass(frozen=True)
class Network:
    """What a network is made of.

    Attributes:
        layers, width, heads: of the encoder; the inner features are 4 times ``width``.
        vocabulary: words, or parts of such.
        length: of the sentences it is measured on, in tokens, and trained on, at most.
        hub: whose weights are fine-tuned; empty: it is trained from scratch, on words.
        batches: on which its memory and time are measured, on the CPU and on CUDA.
        roberta: whether it is one, which has no segments.
        deviation: of the initial weights; narrow networks learn from larger ones.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int = 128
    hub: str = ""
    batches: tuple[int, int] = (8, 64)
    roberta: bool = False
    deviation: float = 0.02

    def batch(self, device: torch.device) -> int:
        """On which its memory and time are measured."""
        return self.batches[device.type == "cuda"]

    def __str__(self) -> str:
        kind = "RoBERTa" if self.roberta else "BERT"
        return f"{kind}, {self.layers} layers of {self.width}, {self.heads} heads, dropout {DROPOUT:g}"


NETWORKS: Mapping[str, Network] = MappingProxyType(
    {
        "tiny": Network(2, 64, 4, 4000, length=64, batches=(32, 256), deviation=0.05),
        "base": Network(12, 768, 12, 30_522, hub="bert-base-uncased"),
        # The batch at which GACT's throughputs are.
        "large": Network(24, 1024, 16, 30_522, hub="bert-large-uncased", batches=(2, 16)),
        "roberta": Network(12, 768, 12, 50_265, hub="roberta-base", roberta=True),
    }
)
"""By the name that the command line knows."""


def from_scratch(network: Network, classes: int, vocabulary: int | None = None) -> nn.Module:
    """The network in training mode, its weights drawn from torch's generator.

    Args:
        network: what it is made of.
        classes: that it tells apart; 1 for a number, whose loss is the squared error.
        vocabulary: numbers of words; default: the network's.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    # RoBERTa counts positions from the one behind its padding.
    special = {"type_vocab_size": 1, "max_position_embeddings": network.length + PADDING + 1}
    model: nn.Module = transformer(
        f"{'Roberta' if network.roberta else 'Bert'}ForSequenceClassification",
        network.layers,
        network.width,
        network.heads,
        vocabulary or network.vocabulary,
        dropout=DROPOUT,
        pad_token_id=PADDING,
        num_labels=classes,
        initializer_range=network.deviation,
        **(special if network.roberta else {}),
    )
    return model.train()


def pretrained(network: Network, classes: int) -> nn.Module:
    """The network in training mode with the weights of the hub; those of the last layer are drawn.

    Raises:
        MissingLibrary: transformers is not installed.
        NotAtHand: the hub cannot be reached.
    """
    auto = needs("transformers").AutoModelForSequenceClassification
    model: nn.Module = _from_hub(auto, network.hub, num_labels=classes)
    return model.train()


def tokenizer(network: Network) -> Any:
    """The one that the network was pretrained with.

    Raises:
        MissingLibrary: transformers is not installed.
        NotAtHand: the hub cannot be reached.
    """
    return _from_hub(needs("transformers").AutoTokenizer, network.hub)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of the encoder."""
    return list(next(module for name, module in model.named_modules() if name.endswith(".encoder.layer")).children())


def random_batch(network: Network, batch: int, device: torch.device) -> dict[str, Tensor]:
    """Words drawn from torch's generator, as many as the network takes, without padding, and labels of two classes."""
    tokens = torch.randint(PADDING + 1, network.vocabulary, (batch, network.length))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": torch.randint(2, (batch,))}
    return {name: values.to(device) for name, values in inputs.items()}


def _from_hub(kind: Any, name: str, **options: Any) -> Any:
    try:
        return kind.from_pretrained(name, **options)
    except Exception as error:  # of the hub, of its client or of the network: as many classes as they please
        raise NotAtHand(
            f"{name} cannot be downloaded from the hub ({type(error).__name__}: {str(error).splitlines()[0]}); run "
            "once with network access, or use --random-weights to train from scratch, or --model tiny"
        ) from error

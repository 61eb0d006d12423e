"""BERT on MRPC: are two sentences paraphrases? Two options together, for a model of transformers.

A transformer keeps, layer by layer, the inputs of its linear layers and norms, attention's query, key and value, and
what its GELU gets, which is the largest: four times as wide as the rest. In one line:

    compress_model(model, level="L1", activations="fewbit")

    activations="fewbit" exchanges each GELU for one that keeps which of 8 steps its derivative is on: 3 bits an
        element. Its values stay exact. What comes after it is stored as before.
    level="L1" stores what is left by the operator that saved it: inputs of linear layers in 4 bits, of norms in 8,
        query, key and value in 6, dropout's masks in one, exactly. Attention is computed a second time in backward.

Run it:

    pip install "actcore-integrations[hf]" datasets
    python docs/tutorials/bert_mrpc.py              # minutes on 2 cores
    python docs/tutorials/bert_mrpc.py --quick      # seconds, a few steps: what CI runs

The weights are random here, and 4,000 pairs of sentences teach little: what is to be compared is the loss of the two
runs, step by step. For real fine-tuning, take the line of `from_pretrained` below; all the rest stays.

The report opens the model three levels deep, to the encoder's layers; the line "Exchanged" below it counts the GELUs.
"before" is what the untouched model would keep, the GELUs' inputs included.
"""

import argparse
import os
import time
from itertools import pairwise
from pathlib import Path
from pydoc_data.topics import topics

import rich
import torch
import transformers
from torch import Tensor, nn

from integrations.hf import compress_model, compression

BATCH, LENGTH = 16, 96  # pairs, and tokens a pair

Pair = tuple[str, str, int]  # two sentences, and 1 if one is a paraphrase of the other


def main() -> None:
    """Trains twice from the same weights, and prints both runs."""
    parser = argparse.ArgumentParser(description="A BERT on MRPC, with compressed activations and without.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="three steps, and no download")
    options = parser.parse_args()
    steps = 3 if options.quick else options.steps

    pairs, held_out = load(options.quick)
    # With a pretrained model: AutoTokenizer.from_pretrained("google-bert/bert-base-uncased")
    sentences = (sentence for pair in pairs for sentence in pair[:2])
    tokenizer = transformers.BertTokenizer().train_new_from_iterator(sentences, 4000, show_progress=False)
    training, test = tokenized(tokenizer, pairs), tokenized(tokenizer, held_out)

    plain, plain_loss, plain_seconds = train(new_model(tokenizer), training, steps)

    model = new_model(tokenizer)
    compress_model(model, level="L1", activations="fewbit")  # the one line
    model, loss, seconds = train(model, training, steps)
    report = compression(model).report()

    rich.print(report.table(depth=3))
    for name, net, last, kept, spent in (
        ("as it is:  ", plain, plain_loss, report.original_bytes, plain_seconds),
        ("compressed:", model, loss, report.stored_bytes, seconds),
    ):
        right = accuracy(net, test)
        print(f"{name}  loss {last:.4f}, accuracy {right:.1%}, {kept:,} bytes kept for backward, {spent:.0f} s")


def new_model(tokenizer: transformers.PreTrainedTokenizerBase) -> nn.Module:
    """A small BERT with random weights, always the same."""
    torch.manual_seed(0)
    # Pretrained: AutoModelForSequenceClassification.from_pretrained("google-bert/bert-base-uncased")
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512
    )
    return transformers.BertForSequenceClassification(config)


def train(model: nn.Module, data: dict[str, Tensor], steps: int) -> tuple[nn.Module, float, float]:
    """An ordinary loop: the model, its mean loss over the last tenth of the steps, and the seconds that it took."""
    torch.manual_seed(1)  # the same batches and dropout in both runs
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        loss = model(**part(data, torch.randint(len(data["labels"]), (BATCH,)))).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return model, sum(last) / len(last), time.perf_counter() - start


@torch.no_grad()
def accuracy(model: nn.Module, data: dict[str, Tensor]) -> float:
    """On pairs that it has not seen. In ``eval()`` a compressed model runs as any other."""
    model.eval()
    count = len(data["labels"])
    right = sum(
        (model(**(batch := part(data, range(at, min(at + BATCH, count))))).logits.argmax(1) == batch["labels"]).sum()
        for at in range(0, count, BATCH)
    )
    model.train()
    return int(right) / count


def tokenized(tokenizer: transformers.PreTrainedTokenizerBase, pairs: list[Pair]) -> dict[str, Tensor]:
    """Inputs of the model for all pairs, each of shape (pairs, LENGTH), and the labels."""
    first, second, labels = zip(*pairs, strict=True)
    fits = {"padding": "max_length", "truncation": True, "max_length": LENGTH, "return_tensors": "pt"}
    return {**tokenizer(list(first), list(second), **fits), "labels": torch.tensor(labels)}


def part(data: dict[str, Tensor], which: object) -> dict[str, Tensor]:
    """Some of the pairs."""
    return {name: values[which] for name, values in data.items()}


def load(quick: bool) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and to test with."""
    files = [Path(os.environ.get("ACTCORE_DATA", "."), f"mrpc/msr_paraphrase_{name}.txt") for name in ("train", "test")]
    if all(file.is_file() for file in files):
        rows = [[line.split("\t") for line in file.read_text("utf-8-sig").splitlines()[1:]] for file in files]
        training, test = ([(one, other, int(label)) for label, _, _, one, other in part] for part in rows)
        return (training[:200], test[:50]) if quick else (training, test)
    if quick:
        print("Sentences of Python's manual stand in for MRPC, which is not downloaded for a quick run.")
        found = [" ".join(text.split()) for text in "".join(topics.values()).split(". ")][:251]
        pairs = [(one, other, 0) for one, other in pairwise(found)]
        pairs[::2] = [(one, " ".join(reversed(one.split())), 1) for one, _, _ in pairs[::2]]
        return pairs[:200], pairs[200:]
    import datasets

    corpus = datasets.load_dataset("nyu-mll/glue", "mrpc")
    training, test = (
        [(row["sentence1"], row["sentence2"], row["label"]) for row in corpus[name]] for name in ("train", "test")
    )
    return training, test


if __name__ == "__main__":
    main()

"""LoRA fine-tuning: one line for a model with adapters of PEFT.

LoRA freezes the weights and trains two thin matrices beside some of them. That takes the optimizer's state and the
weights' gradients away, and activations are then most of what is left: gradients still go through the whole model to
the adapters, through every norm, activation and attention on the way.

    model = get_peft_model(model, LoraConfig(...))
    compress_model(model, level="L1")

Compress what `get_peft_model` returns. Adapters are merged, saved and loaded as ever: names, weights and the class of
the model stay as they are.

Run it:

    pip install "actcore-integrations[hf]" peft
    python docs/tutorials/lora.py              # minutes on 2 cores
    python docs/tutorials/lora.py --quick      # seconds, two steps: what CI runs

No pretrained weights are downloaded: a small Llama first learns Python's manual, which comes with every Python, byte
by byte, with all of its weights. The adapters then learn the style of torch's docstrings.

The report lists the decoder's layers. A frozen linear layer keeps no input for a weight's gradient, so "before" is less
than in full training, where adapters are few: look at what is left, and by which operators.
"""

import argparse
import copy
import time
from pydoc_data.topics import topics

import rich
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from integrations.hf import compress_model, compression

BATCH, LENGTH = 8, 128  # texts, and bytes a text


def main() -> None:
    """Trains the adapters twice from the same weights, and prints both runs."""
    parser = argparse.ArgumentParser(description="LoRA fine-tuning, with compressed activations and without.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two steps")
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps

    docstrings = [text for name in dir(torch) if isinstance(text := getattr(torch, name).__doc__, str)]
    manual, style = as_bytes(topics.values()), as_bytes(docstrings)
    training, held_out = style[:-50_000], style[-50_000:]
    base, _ = train(new_model(), manual, steps, rate=2e-3)

    plain, plain_seconds = train(with_adapters(base), training, steps, rate=5e-3)

    model = with_adapters(base)
    compress_model(model, level="L1")  # the one line
    model, seconds = train(model, training, steps, rate=5e-3)
    report = compression(model).report()

    rich.print(report.table(depth=4))
    print(f"before fine-tuning: loss {loss(base, held_out):.4f}")
    for name, net, kept, spent in (
        ("as it is:  ", plain, report.original_bytes, plain_seconds),
        ("compressed:", model, report.stored_bytes, seconds),
    ):
        print(f"{name}  loss {loss(net, held_out):.4f}, {kept:,} bytes kept for backward, {spent:.0f} s")


def new_model() -> nn.Module:
    """A small Llama with random weights, always the same."""
    torch.manual_seed(0)
    # Pretrained, and no need to train it here: AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M")
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4
    )
    config.use_cache = False  # no keys and values for generation in training forwards
    return transformers.LlamaForCausalLM(config)


def with_adapters(base: nn.Module) -> nn.Module:
    """A copy of the model whose weights are frozen, with adapters, always the same."""
    torch.manual_seed(0)
    config = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    return get_peft_model(copy.deepcopy(base), config)


def train(model: nn.Module, text: Tensor, steps: int, rate: float) -> tuple[nn.Module, float]:
    """An ordinary loop: the model, and the seconds that it took."""
    torch.manual_seed(1)  # the same batches in all runs
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=rate)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    model.train()
    start = time.perf_counter()
    for _ in range(steps):
        batch = some(text)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model, time.perf_counter() - start


@torch.no_grad()
def loss(model: nn.Module, text: Tensor) -> float:
    """Mean over some batches of a text that it has not seen, nats a byte."""
    torch.manual_seed(2)
    model.eval()
    return sum(model(input_ids=(batch := some(text)), labels=batch).loss.item() for _ in range(10)) / 10


def some(text: Tensor) -> Tensor:
    """A batch of places of a text: (BATCH, LENGTH)."""
    return text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)]


def as_bytes(texts: object) -> Tensor:
    """Texts as numbers from 0 to 255: no tokenizer is needed."""
    return torch.tensor(list("\n".join(texts).encode()))


if __name__ == "__main__":
    main()

"""A causal language model: compression together with a plan of what backward recomputes.

A decoder that reads long texts keeps more for backward than its weights, gradients and optimizer take together.
Checkpointing, which every library has, keeps little and computes the rest a second time. Here the two meet:

    compress_model(model, level="L1", checkpoint=0.25)

    checkpoint=0.25 finds, in the first training forward, what backward had better recompute so that the step's
        peak of activations is at most a quarter of the plain one, for the least time. A budget may be bytes ("4GiB") as
        well, and "optimal" asks for the least peak there is.
    level="L1" stores what is kept, and what is recomputed until backward has read it.

The plan counts compression in. For half the peak, compression alone is enough in this model, and nothing is computed
twice (try --budget 0.5); a budget below the least peak is an error, which says what that is (try --budget 0.1).

    model.config.use_cache = False

Otherwise each training forward returns keys and values for generation, which nobody reads; `compress_model` warns.
`generate()`, in `eval()`, is as it was: give it use_cache=True.

Run it:

    pip install "actcore-integrations[hf]"
    python docs/tutorials/causal_lm.py              # minutes on 2 cores
    python docs/tutorials/causal_lm.py --quick      # seconds, a few steps: what CI runs

The text is Python's manual, which comes with every Python, as bytes: 256 tokens, so no tokenizer. In the report, look
at the line below the table that says how much is recomputed, and at how much of each layer is left.
"""

import argparse
import time
from pydoc_data.topics import topics

import rich
import torch
import transformers
from torch import Tensor, nn

from integrations.hf import compress_model, compression

BATCH, LENGTH = 8, 128  # texts, and bytes a text


def main() -> None:
    """Trains twice from the same weights, and prints both runs."""
    parser = argparse.ArgumentParser(description="A causal language model, with compressed activations and without.")
    parser.add_argument("--budget", type=float, default=0.25, help="of the plain step's activation peak")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two steps")
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps

    text = torch.tensor(list("\n".join(topics.values()).encode()))
    training, held_out = text[:-50_000], text[-50_000:]

    plain, plain_seconds = train(new_model(), training, steps)

    model = new_model()
    compress_model(model, level="L1", checkpoint=options.budget)  # the one line
    model, seconds = train(model, training, steps)
    report = compression(model).report()

    rich.print(report.table(depth=3))
    count = 1 if options.quick else 20
    for name, net, kept, spent in (
        ("as it is:  ", plain, report.original_bytes, plain_seconds),
        ("compressed:", model, report.stored_bytes, seconds),
    ):
        print(f"{name}  loss {loss(net, held_out, count):.4f}, {kept:,} bytes kept for backward, {spent:.0f} s")
    start = training[:40].unsqueeze(0)
    written = model.eval().generate(
        start, max_new_tokens=8 if options.quick else 80, use_cache=True, do_sample=False, pad_token_id=0
    )
    print(repr(bytes(written[0].tolist()).decode(errors="replace")))


def new_model() -> nn.Module:
    """A small Llama with random weights, always the same."""
    torch.manual_seed(0)
    # Pretrained: AutoModelForCausalLM.from_pretrained("HuggingFaceTB/SmolLM2-135M", use_cache=False)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=352, num_hidden_layers=4, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config)
    model.config.use_cache = False
    return model.train()


def train(model: nn.Module, text: Tensor, steps: int) -> tuple[nn.Module, float]:
    """An ordinary loop: the model, and the seconds that it took."""
    torch.manual_seed(1)  # the same batches in both runs
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)
    start = time.perf_counter()
    for _ in range(steps):
        batch = some(text)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model, time.perf_counter() - start


@torch.no_grad()
def loss(model: nn.Module, text: Tensor, count: int) -> float:
    """Mean over some batches of a text that it has not seen, nats a byte."""
    torch.manual_seed(2)
    batches = [some(text) for _ in range(count)]
    return sum(model(input_ids=batch, labels=batch).loss.item() for batch in batches) / count


def some(text: Tensor) -> Tensor:
    """A batch of places of a text: (BATCH, LENGTH)."""
    return text[torch.randint(len(text) - LENGTH, (BATCH, 1)) + torch.arange(LENGTH)]


if __name__ == "__main__":
    main()

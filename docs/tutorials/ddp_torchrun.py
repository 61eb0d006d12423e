"""torchrun: two processes, DistributedDataParallel, and one line.

    compress_model(model, level="L1")
    model = DistributedDataParallel(model)

Compress first, then wrap: DDP calls the model's forward, which is compressed, and averages gradients as ever. Each rank
rounds with noise of its own, so the average of the gradients has less of it than each; and the same run again gives the
same bits. Nothing that is compressed travels between ranks: it is needed where it was stored. At an adaptive level
(level="L2") ranks agree on the bits of each tensor, by what rank 0 has measured.

`compression(inner)` finds the handle by the model that was compressed, `model.module` of what DDP returned. In a
checkpoint, keep `compression(inner).state_dict()` beside the optimizer's: a run that is resumed goes on rounding as the
uninterrupted one would.

Run it:

    torchrun --standalone --nproc-per-node 2 docs/tutorials/ddp_torchrun.py              # a minute or two on 2 cores
    torchrun --standalone --nproc-per-node 2 docs/tutorials/ddp_torchrun.py --quick      # seconds: what CI runs

It takes torch alone: a transformer of torch.nn that reads Python's manual byte by byte, on CPUs with gloo. With GPUs,
take `init_process_group("nccl")`, `torch.cuda.set_device(local_rank)`, and move model and batches there; compress
before or after moving, but before wrapping.
"""

import argparse
import gc
import time
from pydoc_data.topics import topics

import rich
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from integrations import compress_model, compression

BATCH, LENGTH = 8, 128  # texts of each rank, and bytes a text


class Reader(nn.Module):
    """Guesses each byte of a text from those before it."""

    def __init__(self, width: int = 128, layers: int = 3) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, length) bytes to (batch, length, 256) logits of the bytes that come next."""
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        x = self.bytes(text) + self.places.weight[: text.shape[1]]
        return self.head(self.encoder(x, mask=mask, is_causal=True))


def main() -> None:
    """Trains twice from the same weights; rank 0 prints both runs."""
    parser = argparse.ArgumentParser(description="Two processes, with compressed activations and without.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="two steps")
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps

    dist.init_process_group("gloo")  # torchrun has told each process its rank and where to meet
    text = torch.tensor(list("\n".join(topics.values()).encode()))

    plain_loss, plain_seconds = train(DistributedDataParallel(new_model()), text, steps)

    model = new_model()
    compress_model(model, level="L1")  # the one line, before DDP
    loss, seconds = train(DistributedDataParallel(model), text, steps)
    report = compression(model).report()

    same = all_have_the_same(model)
    if dist.get_rank() == 0:
        rich.print(report.table(depth=2))
        print(f"weights of {dist.get_world_size()} ranks are {'the same' if same else 'DIFFERENT'}")
        for name, last, kept, spent in (
            ("as it is:  ", plain_loss, report.original_bytes, plain_seconds),
            ("compressed:", loss, report.stored_bytes, seconds),
        ):
            print(f"{name}  loss {last:.4f}, {kept:,} bytes kept for backward on a rank, {spent:.0f} s")
    gc.collect()  # the two DDPs, which hold the group: its threads must end before Python does
    dist.destroy_process_group()


def new_model() -> Reader:
    """Random weights, always the same."""
    torch.manual_seed(0)
    return Reader()


def train(model: nn.Module, text: Tensor, steps: int) -> tuple[float, float]:
    """An ordinary loop: the mean loss of all ranks over the last tenth of the steps, and the seconds that it took."""
    draw = torch.Generator().manual_seed(1 + dist.get_rank())  # other batches on each rank, the same in both runs
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    start = time.perf_counter()
    for _ in range(steps):
        batch = text[torch.randint(len(text) - LENGTH - 1, (BATCH, 1), generator=draw) + torch.arange(LENGTH + 1)]
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-max(1, steps // 10) :]).mean()
    dist.all_reduce(last)
    return last.item() / dist.get_world_size(), time.perf_counter() - start


def all_have_the_same(model: nn.Module) -> bool:
    """Whether the weights are those of rank 0 on every rank, bit for bit."""
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    first = weights.clone()
    dist.broadcast(first, 0)
    differ = (weights != first).any().int()
    dist.all_reduce(differ)
    return not differ


if __name__ == "__main__":
    main()

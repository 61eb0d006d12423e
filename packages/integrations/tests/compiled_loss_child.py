"""Measures, in a process of its own, the peak of a language model's step, compiled and not: with whole logits, and with
the loss in chunks.

The peak is the kernel's, as in ``compiled_memory_child``. Prints one JSON object: bytes above those before the step.
"""

import gc
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import integrations

sys.path.insert(0, str(Path(__file__).parent))
from compiled_memory_child import resident_peak, start_peak

CLASSES, WIDTH, ROWS = 4096, 64, 1024  # 16 MiB of logits


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)

    def forward(self, ids):
        logits = self.head(torch.tanh(self.layer(self.embedding(ids))))
        return F.cross_entropy(logits[:-1].float(), ids[1:])


def measure(function, ids):
    for _ in range(2):  # compiles, and pays for the gradients
        function(ids).backward()
    gc.collect()
    before = start_peak()
    function(ids).backward()
    return resident_peak() - before


def main():
    torch.set_num_threads(1)
    ids = torch.randint(CLASSES, (ROWS,), generator=torch.Generator().manual_seed(0))
    found = {}
    for loss in ("whole", "chunked"):
        for way in ("eager", "compiled"):
            torch.compiler.reset()
            model = Model()
            if loss == "chunked":
                integrations.compress_model(model, "L1", loss={"head": "head"})
            found[f"{loss} {way}"] = measure(
                model if way == "eager" else torch.compile(model, backend=sys.argv[1]), ids
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()

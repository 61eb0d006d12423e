#!/usr/bin/env python3
"""Print the table of docs/how-to/forecast-ranks.md: GiB of Llama 3.1 on several ranks, by ``integrations.fit``, with
two digits.

Nothing is trained, and no GPU is needed.
"""

from __future__ import annotations

from typing import Any

import transformers

import integrations

SIZES: dict[str, dict[str, Any]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64},
    "405B": {"hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126, "num_attention_heads": 128},
}
MESHES = (
    ("8B", 8, 1, 1),
    ("8B", 4, 2, 1),
    ("70B", 64, 1, 1),
    ("70B", 8, 8, 1),
    ("70B", 8, 8, 4),
    ("405B", 64, 8, 1),
    ("405B", 4, 8, 14),
)
WAYS = ("plain", "checkpoint", "lean")
TOKENS, WORDS, KEYS = 8192, 128256, 8


def config_of(size: str) -> transformers.LlamaConfig:
    """Return the configuration of a Llama 3.1."""
    return transformers.LlamaConfig(
        **SIZES[size], num_key_value_heads=KEYS, vocab_size=WORDS, max_position_embeddings=131072, dtype="bfloat16"
    )


def main() -> None:
    """Print a row for each mesh."""
    print(f"| model | fsdp x tp x pp | ranks | {' | '.join(WAYS)} |")
    print("|---|---|---|---|---|---|")
    for size, fsdp, tp, pp in MESHES:
        fit = integrations.fit(
            config_of(size),
            memory="80GiB",
            tokens=TOKENS,
            dtype="bfloat16",
            optimizer="adamw-fused",
            fsdp=fsdp,
            tp=tp,
            pp=pp,
            ways=WAYS,
            grow=False,
        )
        peaks = " | ".join(f"{float(f'{fit.way(name).peak / 2**30:.2g}'):g}" for name in WAYS)
        print(f"| {size} | {fsdp} x {tp} x {pp} | {fit.ranks} | {peaks} |")


if __name__ == "__main__":
    main()

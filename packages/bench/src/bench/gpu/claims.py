"""What each stage would settle: by stage and by the name that rows speak for."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

CLAIMS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "build": {
            "builds": "The CUDA operators build with what is installed, without a network, and load.",
            "reference": "Every operator gives the reference's bits on the GPU (`python -m actcore`).",
        },
        "tests": {
            "bits": "CUDA gives the CPU's bits: every codec and fused operator, dtype, width, tail and misalignment.",
            "streams": "Kernels run on the current stream, and a CUDA graph replays them with new noise.",
            "capture": "A whole compressed step that a CUDA graph captured rounds anew in every replay.",
            "large": "Nothing is held in 32 bits: tensors of more than 2^31 elements come back.",
            "offload": "Offload is exact, the host does not wait, and its reserved peak is bounded.",
            "compiled": "torch.compile compresses, with inductor and with `reduce-overhead`, and replays round anew.",
            "steps": "Each way to train has the gradient of its bits, and replayed steps store what the first does.",
            "elsewhere": "What else takes a GPU works: autocast, workspaces, side streams, and steps that never wait.",
        },
        "sanitize": {
            "memcheck": "No operator reads or writes outside of its tensors.",
            "racecheck": "No kernel has a race in shared memory.",
            "synccheck": "No kernel synchronises where threads of it have left.",
            "results": "Every operator returns the CPU's bits for tensors that begin and end anywhere.",
        },
        "kernels": {
            "float32": "Every codec moves at least 0.9 of a copy's bytes a second with float32.",
            "integers": "`Narrow` moves at least 0.9 of a copy's bytes a second with int64 and int32.",
            "bfloat16": "GroupAffine at 4 and 8 bits moves at least 0.8 of a copy's bytes a second with bfloat16.",
            "groups": "Groups of 192 reach the same, but for Float8's.",
            "others": "Every other codec reaches 0.8 with bfloat16, too, and Float8 0.9 with float32 in groups of 192: "
            "the estimate expects 1 bit, 2 bits and Float8 to miss that.",
        },
        "models": {
            "smaller": "Each way to train reaches a lower peak than plain training does.",
            "planned": "A planned step keeps within the peak that its plan said.",
        },
        "search": {
            "resnet50-gact": "ResNet-50 trains with 4.2 times the batch in 16 GiB at some level (as GACT).",
            "resnet50-actnn": "ResNet-50 trains with 6.6 times the batch in 16 GiB with Q-layers (as ActNN, at least).",
            "bert-gact": "BERT-large trains with 24.7 times the batch in 16 GiB at some level (as GACT, at most).",
        },
    }
)

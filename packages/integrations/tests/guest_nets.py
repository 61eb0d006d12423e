"""Small language models of transformers, a step of theirs, and whether the errors of compressed steps average out."""

import torch

from .libraries import library_or_skip

CLASSES = 512
IDS = torch.randint(CLASSES, (4, 64), generator=torch.Generator().manual_seed(3))
LABELS = IDS.masked_fill(IDS % 7 == 0, -100)

# Of the whole gradient at lean, in one step: what test_ecosystems.py allows at L1.
LEAN = 0.15
DRAWS = 16


def llama(**options):
    """A Llama of two layers, always the same."""
    transformers = library_or_skip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": CLASSES, "use_cache": False}
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **options})).train()


def language_step(model, **inputs):
    """The loss, and the gradients by name; dropout draws the same in every call."""
    torch.manual_seed(1)
    model.zero_grad()
    loss = model(**(inputs or {"input_ids": IDS, "labels": LABELS})).loss
    loss.backward()
    named = ((name, one.grad) for name, one in model.named_parameters())
    return loss.item(), {name: grad.clone() for name, grad in named if grad is not None}


def whole(gradients):
    """All of a model's gradients, in one vector."""
    return torch.cat([gradients[name].flatten().double() for name in sorted(gradients)])


def whole_error(expected, found):
    """Relative, of the whole gradient."""
    assert expected.keys() == found.keys()
    expected, found = whole(expected), whole(found)
    return ((found - expected).norm() / expected.norm()).item()


def assert_averages_out(expected, found):
    """The errors of many compressed steps from the same weights. Their mean is as long as one of them over the root of
    their number, where no bias is: on average over directions, and twice that is allowed, because adapters have few. So
    a bias of 0.43 of one error is found."""
    expected = whole(expected)
    errors = torch.stack([whole(one) for one in found]) - expected
    one, mean = errors.norm(dim=1).square().mean().sqrt(), errors.mean(0).norm()
    assert 0 < mean < 2 * one / len(found) ** 0.5, f"one {one}, mean {mean}"

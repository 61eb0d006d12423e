"""The layer that makes a model's logits: find it, and have the loss computed without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from integrations.losses.chunked_head import ChunkedHead


def find_head(model: nn.Module, head: str | None = None) -> nn.Module:
    """The layer of a model that makes its logits.

    Args:
        model: any module.
        head: the layer's path; ``None`` for the layer that a transformers model names.

    Raises:
        ValueError: there is no such layer.
    """
    if head is not None:
        try:
            return model.get_submodule(head)
        except AttributeError:
            raise ValueError(
                f"loss must name a linear layer of the {type(model).__name__}, which has no {head!r}"
            ) from None
    asked = getattr(model, "get_output_embeddings", None)
    found = asked() if callable(asked) else None
    if not isinstance(found, nn.Module):
        raise ValueError(
            f"loss must name the layer that makes the logits of the {type(model).__name__}, as in "
            "loss={'head': 'lm_head'}: the model has no get_output_embeddings() that returns it"
        )
    return found


def why_unchunked(model: nn.Module) -> str:
    """Why the loss of a model's own logits cannot be computed in chunks; empty if it can."""
    try:
        return ChunkedHead.refuses(find_head(model))
    except ValueError:
        return "the model does not say what makes its logits"


def path_of_head(model: nn.Module) -> str:
    """Return the path of the layer that makes a model's logits, if the model names it.

    Raises:
        ValueError: the model does not name it.
    """
    head = find_head(model)
    path: str
    for path, module in model.named_modules():
        if module is head:
            return path
    raise ValueError(f"get_output_embeddings() must return a module of the {type(model).__name__}")


def chunk_logits(head: nn.Module, by_plan: bool = False) -> ChunkedHead:
    """Make a linear layer leave its outputs to their loss, from now on.

    Args:
        head: the layer.
        by_plan: whether a plan has chosen this.

    Raises:
        ValueError: the layer cannot.
    """
    if why := ChunkedHead.refuses(head):
        raise ValueError(f"loss must name a linear layer, as in loss={{'head': 'lm_head'}}, or be None: {why}")
    wrapper = ChunkedHead(head, head.forward, "forward" in head.__dict__)
    wrapper.by_plan = by_plan
    wrapper.put()
    return wrapper


def asked_head(model: nn.Module) -> str | None:
    """Return the path of the layer whose logits are never made because ``loss=`` asked for it; ``None`` if there is
    none."""
    path: str
    for path, module in model.named_modules():
        if (found := ChunkedHead.of(module)) is not None and not found.by_plan:
            return path
    return None


@contextmanager
def computing_loss(model: nn.Module, path: str | None) -> Iterator[None]:
    """A block in which a model's forwards compute the loss in chunks of the default size, or from whole logits. A head
    that ``loss=`` asked for stays.

    Args:
        model: the model.
        path: the path of the layer that makes the logits, for chunks; ``None`` for whole logits.
    """
    found = [wrapper for module in model.modules() if (wrapper := ChunkedHead.of(module)) is not None]
    asked = any(not wrapper.by_plan for wrapper in found)
    head = None if path is None or asked else model.get_submodule(path)
    before = [(wrapper.chunks, wrapper.planned_rows) for wrapper in found]
    made = chunk_logits(head, by_plan=True) if head is not None and ChunkedHead.of(head) is None else None
    try:
        for wrapper in found:
            wrapper.chunks, wrapper.planned_rows = asked or wrapper.model is head, None
        yield
    finally:
        if made is not None:
            made.take_out()
        for wrapper, (chunks, rows) in zip(found, before, strict=True):
            wrapper.chunks, wrapper.planned_rows = chunks, rows

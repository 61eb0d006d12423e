"""Models of timm, by name."""

from __future__ import annotations

from typing import Any

from integrations.estimate.forecast.subject import Subject, made, numbers


def subject(name: str, batch: int, size: int | None, elements: bool = False, **options: Any) -> Subject:
    """A model of ``timm.list_models()``, without weights, and a batch of images.

    Args:
        name: of the model.
        batch: images.
        size: pixels of a side; ``None`` for the size that the model was made for.
        elements: whether model and images have any; without, they take no memory.
        **options: for ``timm.create_model``.

    Raises:
        ImportError: timm is not there.
        ValueError: timm has no such model.
    """
    try:
        import timm
    except ImportError as error:
        raise ImportError("models of timm need timm: pip install actcore-integrations[timm]") from error
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        like = f"such as {', '.join(near)}" if near else "see timm.list_models()"
        raise ValueError(f"--timm must be a model that timm has, {like}; got {name!r}")
    if size is not None and "img_size" not in options:
        model = _of_size(name, size, elements, options)
    else:
        model = made(lambda: timm.create_model(name, **options), elements)
    channels, height, width = model.default_cfg["input_size"]
    shape = (batch, channels, size or height, size or width)
    return Subject(f"{name} (timm), batch {'x'.join(map(str, shape))}", model, (numbers(shape, elements),))


def _of_size(name: str, size: int, elements: bool, options: dict[str, Any]) -> Any:
    """The model. Transformers need to be told the size; other models lack that option, and take any size."""
    import timm

    try:
        return made(lambda: timm.create_model(name, img_size=size, **options), elements)
    except TypeError:
        return made(lambda: timm.create_model(name, **options), elements)

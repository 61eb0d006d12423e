"""Models of transformers, from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from integrations.estimate.forecast.subject import Subject, made, numbers

# The heads with which a kind of model is trained, by transformers' names for their tables; the first that exists is
# taken.
_HEADS = (
    ("Seq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING"),
    ("MaskedLM", "MODEL_FOR_MASKED_LM_MAPPING"),
    ("CausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING"),
    ("ImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
    ("AudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING"),
)
_LABELS = ("Seq2SeqLM", "MaskedLM", "CausalLM")


def subject(name: str, batch: int, length: int, size: int | None, elements: bool = False, **options: Any) -> Subject:
    """A model with random weights, and a batch for it: of tokens with labels, of images, or of sound.

    Args:
        name: a model type, such as ``"bert"``, whose default configuration is taken; or the path of a ``config.json``,
            or of a folder that holds one.
        batch: sequences or images.
        length: tokens, or samples of sound, of a sequence.
        size: pixels of an image's side; ``None`` for the configuration's.
        elements: whether model and numbers have any; without, they take no memory.
        **options: fields of the configuration.

    Raises:
        ImportError: transformers is not there.
        ValueError: there is no such type or file, or a field that the configuration does not have.
    """
    return of_config(configuration(name, options), batch, length, size, elements)


def of_config(config: Any, batch: int, length: int, size: int | None = None, elements: bool = False) -> Subject:
    """The model of a configuration, and a batch for it; the arguments are those of ``subject``.

    Raises:
        ValueError: the model takes something else than tokens, images or sound.
    """
    import transformers

    head = _head(transformers, config)
    auto = getattr(transformers, f"AutoModelFor{head}" if head else "AutoModel")
    model = made(lambda: auto.from_config(config), elements)
    given = str(model.main_input_name)
    if given == "pixel_values":
        side = size or getattr(config, "image_size", 224)
        height, width = side if isinstance(side, (tuple, list)) else (side, side)
        images = numbers((batch, getattr(config, "num_channels", 3), height, width), elements)
        return Subject(f"{_title(config)}, batch {'x'.join(map(str, images.shape))}", model, (), {given: images})
    if given == "input_values":
        sound = numbers((batch, length), elements)
        return Subject(f"{_title(config)}, {batch} x {length} samples", model, (), {given: sound})
    if given != "input_ids":
        raise ValueError(
            f"--hf must be a model of tokens, images or sound, and {type(model).__name__} takes {given}: make it in "
            "Python, and call integrations.forecast(model, kwargs={...})"
        )
    tokens = torch.zeros(batch, length, dtype=torch.int64)
    inputs = {"input_ids": tokens}
    if head in _LABELS:
        inputs["labels"] = tokens.clone()
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = tokens.clone()
    return Subject(f"{_title(config)}, batch {batch} x {length} tokens", model, (), inputs)


def is_configuration(given: object) -> bool:
    """Whether an object is a configuration of transformers."""
    if not hasattr(given, "model_type"):  # which spares the import
        return False
    import transformers

    return isinstance(given, transformers.PretrainedConfig)


def configuration(name: str, options: dict[str, Any]) -> Any:
    """The configuration of a model type, or of a file.

    Raises:
        ImportError: transformers is not there.
        ValueError: there is no such type or file, or a field that the configuration does not have.
    """
    try:
        import transformers
    except ImportError as error:
        raise ImportError("models of transformers need transformers: pip install actcore-integrations[hf]") from error
    path = Path(name)
    if path.exists():
        config = _of_file(path)
    elif name in transformers.CONFIG_MAPPING:
        config = transformers.AutoConfig.for_model(name)
    else:
        raise ValueError(
            f"--hf must be a model type of transformers, such as bert, gpt2 or vit, or the path of a config.json; got "
            f"{name!r}"
        )
    if unknown := [option for option in options if not hasattr(config, option)]:
        raise ValueError(f"--set must be fields of {type(config).__name__}, got {', '.join(unknown)}")
    if path.exists():
        return _of_file(path, **options)
    return transformers.AutoConfig.for_model(name, **options)  # some fields follow from others


def _of_file(path: Path, **options: Any) -> Any:
    """The configuration of a file. Code that the file names is not run."""
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(str(path), trust_remote_code=False, **options)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:  # of damaged fields, as it takes them
        raise ValueError(f"--hf must be a config.json of transformers, but {path} is not: {error!r:.200}") from error


def _head(transformers: Any, config: Any) -> str:
    """The end of the name of transformers' class with the head to train; empty for the model alone."""
    for architecture in config.architectures or ():
        for head, _ in _HEADS:
            if architecture.endswith(head) or (head == "Seq2SeqLM" and "ConditionalGeneration" in architecture):
                return head
    tables = transformers.models.auto.modeling_auto
    return next((head for head, table in _HEADS if type(config) in getattr(tables, table)), "")


def _title(config: Any) -> str:
    return f"{config.model_type} (transformers)"

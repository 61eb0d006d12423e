"""transformers' models: two layers of 128 features, for a batch of 8 sequences of 64 tokens, images or sounds.

The vocabulary has 256 tokens: a language model's logits, which are kept exactly, would otherwise be most of what so
small a model saves. Everything else is as the configuration has it, dropout and the implementation of attention, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from .case import Case

BATCH, TOKENS = 8, 64
SIDE = 64  # pixels of an image
SAMPLES = 8000  # of half a second of sound
VOCABULARY, LABELS = 256, 5

Inputs = Callable[[Any], tuple[dict[str, torch.Tensor], str]]


def _tokens() -> torch.Tensor:
    return torch.randint(5, VOCABULARY, (BATCH, TOKENS))  # those before 5 are special somewhere


def _classes() -> torch.Tensor:
    return torch.randint(LABELS, (BATCH,))


def _text(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Sequences, each with a label."""
    return {"input_ids": _tokens(), "labels": _classes()}, f"{BATCH} x {TOKENS} tokens"


def _language(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Sequences whose tokens are their labels, masked or shifted."""
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens.clone()}, f"{BATCH} x {TOKENS} tokens"


def _translation(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Sequences to read and others to write."""
    return {"input_ids": _tokens(), "labels": _tokens()}, f"{BATCH} x {TOKENS} tokens to {TOKENS}"


def _image(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    return {"pixel_values": torch.randn(BATCH, 3, SIDE, SIDE), "labels": _classes()}, f"{BATCH} at {SIDE} x {SIDE}"


def _image_and_text(config: Any) -> tuple[dict[str, Any], str]:
    images = torch.randn(BATCH, 3, SIDE, SIDE)
    inputs = {"pixel_values": images, "input_ids": _tokens(), "return_loss": True}
    return inputs, f"{BATCH} at {SIDE} x {SIDE} with {TOKENS} tokens"


def _sound(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    return {"input_values": torch.randn(BATCH, SAMPLES), "labels": _classes()}, f"{BATCH} x {SAMPLES:,} samples"


def _spectrum(config: Any) -> tuple[dict[str, torch.Tensor], str]:
    """Whisper's: two frames for each position of its encoder."""
    frames = 2 * config.max_source_positions
    spectrum = torch.randn(BATCH, config.num_mel_bins, frames)
    return {"input_features": spectrum, "labels": _tokens()}, f"{BATCH} x {frames} frames to {TOKENS} tokens"


_SHAPE = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
_TEXT = {**_SHAPE, "vocab_size": VOCABULARY, "num_labels": LABELS}
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {"head_dim": 32}
_PAIR = {
    "vocab_size": VOCABULARY,
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
}
_PAIR_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_SOUND = {**_SHAPE, "num_labels": LABELS, "conv_dim": (64,) * 7, "num_conv_pos_embeddings": 16}
_STAGES = {"depths": [1, 1, 1, 1], "num_labels": LABELS}

# By name: family, configuration, model, what it takes, and the configuration's fields.
_MODELS: Mapping[str, tuple[str, str, str, Inputs, Mapping[str, Any]]] = {
    "bert": ("encoder", "BertConfig", "BertForSequenceClassification", _text, _TEXT),
    "roberta": ("encoder", "RobertaConfig", "RobertaForMaskedLM", _language, _TEXT),
    "electra": (
        "encoder",
        "ElectraConfig",
        "ElectraForSequenceClassification",
        _text,
        {**_TEXT, "embedding_size": 128},
    ),
    "albert": ("encoder", "AlbertConfig", "AlbertForSequenceClassification", _text, {**_TEXT, "embedding_size": 64}),
    "distilbert": (
        "encoder",
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        _text,
        {"vocab_size": VOCABULARY, "num_labels": LABELS, "dim": 128, "n_layers": 2, "n_heads": 4, "hidden_dim": 512},
    ),
    "deberta_v2": ("encoder", "DebertaV2Config", "DebertaV2ForSequenceClassification", _text, _TEXT),
    "modernbert": (
        "encoder",
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        _language,
        {**_TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "mpnet": ("encoder", "MPNetConfig", "MPNetForMaskedLM", _language, _TEXT),
    "gpt2": (
        "decoder",
        "GPT2Config",
        "GPT2LMHeadModel",
        _language,
        {
            "vocab_size": VOCABULARY,
            "n_embd": 128,
            "n_layer": 2,
            "n_head": 4,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "gpt_neox": ("decoder", "GPTNeoXConfig", "GPTNeoXForCausalLM", _language, {**_TEXT, "eos_token_id": 2}),
    "opt": (
        "decoder",
        "OPTConfig",
        "OPTForCausalLM",
        _language,
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "word_embed_proj_dim": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 512,
        },
    ),
    "llama": ("decoder", "LlamaConfig", "LlamaForCausalLM", _language, _GROUPED),
    "mistral": ("decoder", "MistralConfig", "MistralForCausalLM", _language, {**_GROUPED, **_HEADS}),
    "mixtral": (
        "mixture of experts",
        "MixtralConfig",
        "MixtralForCausalLM",
        _language,
        {**_GROUPED, **_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "qwen3": ("decoder", "Qwen3Config", "Qwen3ForCausalLM", _language, {**_GROUPED, **_HEADS}),
    "gemma2": (
        "decoder",
        "Gemma2Config",
        "Gemma2ForCausalLM",
        _language,
        {**_GROUPED, **_HEADS, "query_pre_attn_scalar": 32},
    ),
    "phi": ("decoder", "PhiConfig", "PhiForCausalLM", _language, _TEXT),
    "falcon": ("decoder", "FalconConfig", "FalconForCausalLM", _language, _TEXT),
    "mamba": (
        "state space",
        "MambaConfig",
        "MambaForCausalLM",
        _language,
        {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 2, "eos_token_id": 2, "bos_token_id": 1},
    ),
    "t5": (
        "encoder-decoder",
        "T5Config",
        "T5ForConditionalGeneration",
        _translation,
        {
            "vocab_size": VOCABULARY,
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": 4,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": (
        "encoder-decoder",
        "BartConfig",
        "BartForConditionalGeneration",
        _translation,
        {**_PAIR, **_PAIR_TOKENS, "forced_eos_token_id": 2},
    ),
    "marian": (
        "encoder-decoder",
        "MarianConfig",
        "MarianMTModel",
        _translation,
        {**_PAIR, **_PAIR_TOKENS, "decoder_vocab_size": VOCABULARY, "forced_eos_token_id": 2},
    ),
    "pegasus": (
        "encoder-decoder",
        "PegasusConfig",
        "PegasusForConditionalGeneration",
        _translation,
        {**_PAIR, **_PAIR_TOKENS, "forced_eos_token_id": 2},
    ),
    "vit": (
        "vision",
        "ViTConfig",
        "ViTForImageClassification",
        _image,
        {**_SHAPE, "num_labels": LABELS, "image_size": SIDE, "patch_size": 8},
    ),
    "swin": (
        "vision",
        "SwinConfig",
        "SwinForImageClassification",
        _image,
        {
            "num_labels": LABELS,
            "image_size": SIDE,
            "patch_size": 4,
            "embed_dim": 32,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "convnext": (
        "vision",
        "ConvNextConfig",
        "ConvNextForImageClassification",
        _image,
        {**_STAGES, "hidden_sizes": [32, 64, 128, 256]},
    ),
    "segformer": (
        "vision",
        "SegformerConfig",
        "SegformerForImageClassification",
        _image,
        {**_STAGES, "hidden_sizes": [32, 64, 128, 256]},
    ),
    "clip": (
        "vision and text",
        "CLIPConfig",
        "CLIPModel",
        _image_and_text,
        {
            "text_config": {**_SHAPE, "vocab_size": VOCABULARY, "eos_token_id": 2, "bos_token_id": 1},
            "vision_config": {**_SHAPE, "image_size": SIDE, "patch_size": 8},
            "projection_dim": 64,
        },
    ),
    "wav2vec2": ("audio", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", _sound, _SOUND),
    "hubert": ("audio", "HubertConfig", "HubertForSequenceClassification", _sound, _SOUND),
    "whisper": (
        "audio",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        _spectrum,
        {**_PAIR, **_PAIR_TOKENS, "num_mel_bins": 40, "max_source_positions": 100, "max_target_positions": TOKENS},
    ),
}


def entries() -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Family, name and maker of each."""
    for name, (family, configuration, architecture, inputs, fields) in _MODELS.items():
        yield family, name, partial(_case, configuration, architecture, inputs, fields)


def _case(configuration: str, architecture: str, inputs: Inputs, fields: Mapping[str, Any]) -> Case:
    transformers = import_module("transformers")
    config = getattr(transformers, configuration)(**fields)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # keys and values for generation are of no use to training
    model = getattr(transformers, architecture)(config)
    given, what = inputs(config)
    return Case(model.train(), lambda: model(**given).loss, what)

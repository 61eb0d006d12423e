"""The training tests that transformers has for all its models, for some of them.

transformers' package carries the common tests (``tests/test_modeling_common.py``, ``tests/test_training_mixin.py``).
It lacks the tests of each model, which say how a small one is made, and the modules of two kinds of tests that the
common ones are mixed with. Here are small models, and nothing in the place of the latter.

    peers_run.py FOLDER -- --noconftest .../peers/transformers_peers.py -k "train or grad"
"""

import sys
import types
import unittest

import torch
import transformers

for _module, _name in (
    ("exporters.test_export", "ExportTesterMixin"),
    ("generation.test_utils", "GenerationTesterMixin"),
):
    _package = _module.partition(".")[0]
    sys.modules[f"tests.{_package}"] = types.ModuleType(f"tests.{_package}")
    sys.modules[f"tests.{_module}"] = types.ModuleType(f"tests.{_module}")
    setattr(sys.modules[f"tests.{_module}"], _name, type(_name, (), {}))

from tests import test_modeling_common as common  # noqa: E402
from tests import test_training_mixin as training  # noqa: E402

VOCABULARY, BATCH, LENGTH = 99, 2, 7

# By name: the classes, without and with a head.
MODELS = {
    "Bert": ("BertModel", "BertForMaskedLM"),
    "GPT2": ("GPT2Model", "GPT2LMHeadModel"),
    "Llama": ("LlamaModel", "LlamaForCausalLM"),
    "Mistral": ("MistralModel", "MistralForCausalLM"),
    "Mixtral": ("MixtralModel", "MixtralForCausalLM"),
    "Qwen3": ("Qwen3Model", "Qwen3ForCausalLM"),
    "Gemma2": ("Gemma2Model", "Gemma2ForCausalLM"),
    "GPTNeoX": ("GPTNeoXModel", "GPTNeoXForCausalLM"),
    "Electra": ("ElectraModel", "ElectraForMaskedLM"),
    "Mamba": ("MambaModel", "MambaForCausalLM"),
}


class SmallModel:
    """What the common tests ask of a model's tester.

    Args:
        kind: the configuration's class.
        causal: the class with a head, if it predicts the next token.
    """

    is_training = True
    batch_size, seq_length = BATCH, LENGTH
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, kind, causal):
        self.config_class, self.causal_lm_class = kind, causal

    def get_config(self):
        """A small model's configuration, by the names that most models have, or their attribute maps translate."""
        tokens = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
        sizes = {name: getattr(self, name) for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        more = {"num_key_value_heads": 2, "intermediate_size": 64, "head_dim": 8, "num_local_experts": 4}
        known = self.config_class().to_dict()
        return self.config_class(
            vocab_size=VOCABULARY, **tokens, **sizes, **{name: more[name] for name in more if name in known}
        )

    def prepare_config_and_inputs_for_common(self):
        """A configuration, and a batch for it."""
        ids = torch.randint(3, VOCABULARY, (BATCH, LENGTH))
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def prepare_config_and_inputs_for_model_class(self, model_class):
        """As for the others."""
        return self.prepare_config_and_inputs_for_common()


def _case(names):
    base, headed = (getattr(transformers, name) for name in names)
    causal = headed if "MaskedLM" not in headed.__name__ else None
    tester = SmallModel(base.config_class, causal)
    mixins = (common.ModelTesterMixin, training.TrainingTesterMixin) if causal else (common.ModelTesterMixin,)
    return type(
        f"{base.__name__}Test",
        (*mixins, unittest.TestCase),
        {
            "all_model_classes": (base, headed),
            "model_tester": tester,
            "has_attentions": "Mamba" not in base.__name__,
            "is_encoder_decoder": False,
            "test_resize_embeddings": False,
            "__module__": __name__,
        },
    )


globals().update({f"{name}Test": _case(names) for name, names in MODELS.items()})

"""``integrations.timm``, ``.hf`` and ``.pyg``: what each knows of its library."""

import copy
import importlib
import importlib.util
import sys
import warnings

import pytest
import torch
from torch import nn

import integrations
from integrations import fewbit
from integrations._utils.ecosystem import library

from .libraries import library_or_skip
from .nets import assert_same, gradients, normal, relative_error

IDS = torch.randint(100, (4, 64), generator=torch.Generator().manual_seed(0))
EDGES = torch.randint(200, (2, 1000), generator=torch.Generator().manual_seed(1))
NODES = normal(200, 32)


def hf():
    pytest.importorskip("transformers")
    import integrations.hf

    return integrations.hf


def timm():
    library_or_skip("timm")
    import integrations.timm

    return integrations.timm


def pyg():
    pytest.importorskip("torch_geometric")
    import integrations.pyg

    return integrations.pyg


def transformer(name, **options):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    if name.startswith("GPT2"):
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4}
    if name.startswith("T5"):
        sizes = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16, "decoder_start_token_id": 0}
    kind = getattr(transformers, name)
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    torch.manual_seed(0)
    return kind(kind.config_class(vocab_size=100, **sizes, **special, **options)).train()


def language_gradients(model):
    """Of a step on the next token's loss; dropout draws the same in every call."""
    torch.manual_seed(1)
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def whole_error(plain, found):
    """Relative, of the whole gradient."""
    squares = sum((plain[name] - found[name]).square().sum() for name in plain)
    return (squares / sum(value.square().sum() for value in plain.values())).sqrt().item()


# ---- whose model it is ----


@pytest.mark.parametrize("ecosystem", [hf, timm, pyg], ids=["hf", "timm", "pyg"])
def test_a_model_of_none_of_their_classes(ecosystem):
    with pytest.raises(ValueError, match=r"got Sequential, which contains none; integrations.compress_model takes"):
        ecosystem().compress_model(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got int"):
        ecosystem().compress_model(3)


@pytest.mark.parametrize(("name", "extra"), [("timm", "timm"), ("transformers", "hf"), ("torch_geometric", "pyg")])
def test_a_library_that_is_not_installed(monkeypatch, name, extra):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"integrations.{extra}", raising=False)
    with pytest.raises(ImportError, match=rf"pip install actcore-integrations\[{extra}\]"):
        importlib.import_module(f"integrations.{extra}")


def test_a_library_that_is_broken_says_so_itself(monkeypatch, tmp_path):
    (tmp_path / "half_a_library.py").write_text("import what_it_needs\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        library("half_a_library", "hf")


def test_a_model_that_contains_one_is_known():
    model = nn.ModuleDict({"net": transformer("BertModel")})
    hf().compress_model(model, "L1")
    hf().restore_model(model)


def test_a_model_compressed_already():
    model = transformer("BertForMaskedLM")
    hf().compress_model(model)
    with pytest.raises(ValueError, match=r"compressed already; call integrations\.restore_model"):
        hf().compress_model(model, activations="fewbit")
    assert not fewbit.is_converted(model)


# ---- transformers ----


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "name", ["BertForMaskedLM", "GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"]
)
def test_language_models(name, attention):
    if name.startswith("T5") and attention == "sdpa":
        pytest.skip("a T5 has a bias in its attention's scores, and eager attention alone")
    model = transformer(name, attn_implementation=attention, use_cache=False)
    plain = language_gradients(copy.deepcopy(model))
    hf().compress_model(model)
    # The bound for all its models, 0.15, which bits of 4 and 8 keep.
    assert whole_error(plain, language_gradients(model)) < 0.15
    report = integrations.compression(model).report()
    assert report.stored_bytes < report.original_bytes / 2
    assert_same(plain, language_gradients(hf().restore_model(model)))


def test_tied_weights_stay_tied_and_exact():
    model = transformer("GPT2LMHeadModel", use_cache=False)
    hf().compress_model(model, activations="fewbit", linear=0.5)
    assert model.lm_head.weight is model.transformer.wte.weight
    language_gradients(model)
    owned = [row for row in integrations.compression(model).report().rows if row.owner == "parameter"]
    assert owned
    assert all(row.stored_bytes == 0 for row in owned)
    assert fewbit.summary(model).sketched == 9  # four Conv1D a block, and the head
    hf().restore_model(model)
    assert model.lm_head.weight is model.transformer.wte.weight


def test_a_sketch_of_every_token_is_exact_in_conv1d_too():
    model = transformer("GPT2LMHeadModel", use_cache=False)
    plain = language_gradients(copy.deepcopy(model))
    found = language_gradients(hf().compress_model(model, "L0", linear=1.0))
    # Conv1D's addmm and linear's sum in another order: some rounding errors of float32, 2**-24, for each of 256 terms.
    assert relative_error(plain, found) < 256 * 2**-24


def test_conv1d_keeps_a_sketch_whose_mean_is_right():
    kinds = pytest.importorskip("transformers.pytorch_utils")
    torch.manual_seed(0)
    plain = nn.Sequential(kinds.Conv1D(16, 32))
    x, g = normal(64, 32), normal(64, 16, seed=1)
    exact = g.t() @ x
    layer = integrations.compress_model(plain, "L0", linear={"proj_dim": 16})
    found = []
    for _ in range(400):
        plain.zero_grad()
        layer(x).backward(g)
        found.append(layer[0].weight.grad.t().clone())
    error = (torch.stack(found).mean(0) - exact).norm()
    # Four standard errors of the mean, from the spread of the draws themselves.
    assert error < 4 * (torch.stack(found).var(0).sum() / len(found)).sqrt()
    assert found[0].sub(exact).norm() > 4 * error


def test_checkpointed_blocks_are_stored_and_exclude_a_plan():
    model = transformer("BertForMaskedLM")
    plain = language_gradients(copy.deepcopy(model))
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match=r"checkpoint must be None .*gradient_checkpointing_disable\(\)"):
        hf().compress_model(model, checkpoint=0.5)
    hf().compress_model(model)
    assert whole_error(plain, language_gradients(model)) < 0.15
    assert any(row.operator == "checkpoint" for row in integrations.compression(model).report().rows)


def test_a_cache_in_training_is_told_of():
    model = transformer("LlamaForCausalLM")
    with pytest.warns(UserWarning, match="config.use_cache=True"):
        hf().compress_model(model)
    for quiet in ("no cache", "checkpointed", "encoder"):
        model = transformer("BertForMaskedLM" if quiet == "encoder" else "LlamaForCausalLM")
        if quiet == "no cache":
            model.config.use_cache = False
        if quiet == "checkpointed":
            model.gradient_checkpointing_enable()
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            hf().compress_model(model)


@pytest.mark.filterwarnings("ignore:.*use_cache")
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_generate_is_as_it_was(name):
    model = transformer(name)
    plain = copy.deepcopy(model).eval().generate(IDS, max_new_tokens=8, do_sample=False)
    hf().compress_model(model, activations="fewbit", linear=0.5)
    language_gradients(model)
    assert torch.equal(model.eval().generate(IDS, max_new_tokens=8, do_sample=False), plain)


def test_adapters_of_peft():
    peft = pytest.importorskip("peft")
    model = transformer("LlamaForCausalLM", use_cache=False)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], lora_dropout=0.0)
    model = peft.get_peft_model(model, config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # which begin at zero, and with them the gradients of lora_A
            nn.init.normal_(parameter, std=0.1)
    plain = language_gradients(copy.deepcopy(model))
    hf().compress_model(model, activations="fewbit")
    found = language_gradients(model)
    assert found.keys() == plain.keys()
    assert all("lora_" in name for name in found)
    assert whole_error(plain, found) < 0.15
    report = integrations.compression(model).report()
    assert report.stored_bytes < report.original_bytes
    hf().restore_model(model)
    assert_same(plain, language_gradients(model))
    model.merge_and_unload()


# ---- timm ----


def images(model):
    torch.manual_seed(1)
    model.zero_grad()
    model(normal(4, 3, 64, 64)).square().mean().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def vit():
    torch.manual_seed(0)
    models = library_or_skip("timm")
    return models.create_model("vit_tiny_patch16_224", img_size=64, depth=2).train()


@pytest.mark.parametrize("fused", [True, False])
def test_attention_of_timm(fused):
    compress_model = timm().compress_model
    model = vit()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    plain = images(copy.deepcopy(model))
    compress_model(model, activations="fewbit")
    assert whole_error(plain, images(model)) < 0.15
    operators = {row.operator for row in integrations.compression(model).report().rows}
    assert ("scaled_dot_product_attention" in operators) is fused
    assert ("softmax" in operators) is not fused


def test_checkpoint_seq_is_stored_and_excludes_a_plan():
    compress_model = timm().compress_model
    model = vit()
    plain = images(copy.deepcopy(model))
    model.set_grad_checkpointing()
    with pytest.raises(ValueError, match=r"checkpoint must be None .*set_grad_checkpointing\(False\)"):
        compress_model(model, checkpoint="optimal")
    compress_model(model)
    assert whole_error(plain, images(model)) < 0.15
    assert any(row.operator == "checkpoint" for row in integrations.compression(model).report().rows)


def test_timms_own_activations():
    models = library_or_skip("timm")
    compress_model = timm().compress_model
    torch.manual_seed(0)
    model = compress_model(models.create_model("mobilenetv3_small_050").train(), activations="fewbit")
    images(model)
    summary = fewbit.summary(model)
    assert summary.activations
    assert {after for _, after in summary.converted.values()} >= {"fewbit.Hardswish", "fewbit.ReLU"}


# ---- PyG ----


def pyg_nn():
    return pytest.importorskip("torch_geometric.nn")


def test_linear_layers_of_pyg_keep_sketches():
    model = pyg_nn().SAGEConv(32, 64)
    plain = gradients(copy.deepcopy(model), NODES, EDGES)
    pyg().compress_model(model, "L0", linear=1.0)
    assert_same(plain, gradients(model, NODES, EDGES))
    pyg().restore_model(model)
    pyg().compress_model(model, linear=0.1)
    assert fewbit.summary(model).sketched == 2
    gradients(model, NODES, EDGES)
    pyg().restore_model(model)
    assert_same(plain, gradients(model, NODES, EDGES))


def test_a_lazy_layer_of_pyg_has_to_be_called_first():
    model = pyg_nn().SAGEConv(-1, 64)
    with pytest.raises(ValueError, match="no shapes yet; call the model once"):
        pyg().compress_model(model, linear=0.5)
    with torch.no_grad():
        model(NODES, EDGES)
    pyg().compress_model(model, linear=0.5)


def test_layers_of_pyg_draw_their_weights_anew_as_before():
    """Between folds, for instance: glorot, where torch's linear layers have another distribution."""
    found = []
    for linear in (None, 0.5):
        model = pyg().compress_model(pyg_nn().GCN(32, 64, 2, 4), "L0", linear=linear)
        torch.manual_seed(5)
        model.reset_parameters()
        found.append({name: value.clone() for name, value in model.state_dict().items()})
        copied = copy.deepcopy(model)
        torch.manual_seed(5)
        copied.reset_parameters()
        assert_same(found[-1], copied.state_dict())
    assert_same(*found)


def test_hetero_models():
    layers = pyg_nn()
    conv = {
        ("a", "to", "b"): layers.SAGEConv((32, 32), 64),
        ("b", "to", "a"): layers.GATConv((32, 32), 64, add_self_loops=False),
    }
    model = layers.HeteroConv(conv)
    x = {"a": NODES, "b": normal(200, 32, seed=3)}
    edges = {("a", "to", "b"): EDGES, ("b", "to", "a"): EDGES.flip(0)}

    def loss(output):
        return sum(value.square().mean() for value in output.values())

    plain = gradients(copy.deepcopy(model), x, edges, loss=loss)
    pyg().compress_model(model)
    assert whole_error(plain, gradients(model, x, edges, loss=loss)) < 0.15
    report = integrations.compression(model).report()
    assert report.stored_bytes < report.original_bytes


def test_a_model_made_hetero():
    layers = pyg_nn()
    names = (["a", "b"], [("a", "to", "b"), ("b", "to", "a")])
    model = layers.to_hetero(layers.GraphSAGE(32, 64, 2, 8), names)
    x, edges = {"a": NODES, "b": NODES.flip(0)}, dict.fromkeys(names[1], EDGES)

    def loss(output):
        return sum(value.square().mean() for value in output.values())

    plain = gradients(copy.deepcopy(model), x, edges, loss=loss)
    pyg().compress_model(model, activations="fewbit")
    assert whole_error(plain, gradients(model, x, edges, loss=loss)) < 0.15


def test_sampled_batches():
    from torch_geometric.utils import k_hop_subgraph

    model = pyg().compress_model(pyg_nn().GCN(32, 64, 2, 4))
    for seed in range(3):
        nodes, edges, _, _ = k_hop_subgraph([seed, 50 + seed], 2, EDGES, relabel_nodes=True)
        gradients(model, NODES[nodes], edges)
        report = integrations.compression(model).report()
        assert report.stored_bytes < report.original_bytes


def test_neighbour_loader():
    loader = pytest.importorskip("torch_geometric.loader").NeighborLoader
    data = pytest.importorskip("torch_geometric.data").Data(x=NODES, edge_index=EDGES)
    if not any(importlib.util.find_spec(name) for name in ("pyg_lib", "torch_sparse")):
        pytest.skip("NeighborLoader needs pyg-lib or torch-sparse")
    model = pyg().compress_model(pyg_nn().GCN(32, 64, 2, 4))
    for batch in loader(data, num_neighbors=[4, 4], batch_size=50):
        gradients(model, batch.x, batch.edge_index)


def test_sparse_tensor():
    sparse = pytest.importorskip("torch_sparse", reason="SparseTensor needs torch-sparse")
    model = pyg().compress_model(pyg_nn().GCN(32, 64, 2, 4))
    gradients(model, NODES, sparse.SparseTensor.from_edge_index(EDGES, sparse_sizes=(200, 200)).t())


def test_a_report_names_activations_that_a_library_writes_itself():
    model = transformer("GPT2LMHeadModel", use_cache=False)
    hf().compress_model(model, activations="fewbit")
    language_gradients(model)
    operators = {row.operator for row in integrations.compression(model).report().rows}
    assert "few-bit NewGELUActivation" in operators
    assert "few-bit forward" not in operators

"""Levels, ``config`` and the loader of indices."""

import dataclasses
import pickle

import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

from integrations.qmodules import LEVELS, DataLoader, QLevel
from integrations.qmodules.config import Config
from integrations.qmodules.levels import resolve_level


def test_levels_are_actnns():
    assert list(LEVELS) == ["L0", "L1", "L2", "L3", "L3.1", "L4", "L5", "swap"]
    l0, l1, l2, l3, _, l4, _, swap = LEVELS.values()
    assert l0.off
    assert (l1.bits, l1.norms, l1.per_sample, l1.per_layer) == ((4,), False, False, False)
    assert dataclasses.replace(l1, norms=True) == l2
    assert (l3.bits, l3.per_sample, l3.per_layer, l3.norm_adaptive) == ((2, 8, 8), True, True, True)
    assert dataclasses.replace(l3, offload=True) == l4
    assert (swap.compress, swap.offload, swap.off) == (False, True, False)
    assert LEVELS["L3.1"] == l3
    assert LEVELS["L5"] == l4
    with pytest.raises(TypeError):
        LEVELS["mine"] = l3


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bits": (0,)}, ValueError, r"bits\[0\] must be from 1 to 8, got 0; 8 is the most precise"),
        ({"bits": (2, 9)}, ValueError, r"bits\[1\] must be from 1 to 8, got 9"),
        ({"bits": (float("nan"),)}, ValueError, r"bits\[0\] must be from 1 to 8, got nan"),
        ({"bits": ("2",)}, TypeError, r"bits\[0\] must be a number, got '2'"),
        ({"bits": "2"}, TypeError, r"bits must be a number, or one for each group of layers, got '2'; try \(2, 8, 8\)"),
        ({"bits": True}, TypeError, "bits must be a number, or one for each group of layers, got True"),
        ({"bits": 9}, ValueError, r"bits\[0\] must be from 1 to 8, got 9"),
        ({"bits": []}, ValueError, "bits must have a number for each group of layers, got none"),
        ({"initial_bits": 16}, ValueError, "initial_bits must be from 1 to 8, got 16"),
        ({"group_size": 48}, ValueError, "group_size must be a positive multiple of 32, got 48"),
        ({"num_samples": 0}, ValueError, "num_samples must be the number of samples in the training set, got 0"),
        ({"num_samples": 2.0}, TypeError, "num_samples must be an int, got 2.0"),
        ({"per_sample": 1}, TypeError, "per_sample must be True or False, got 1"),
        ({"seed": 1 << 64}, ValueError, "seed must fit in 64 bits"),
    ],
)
def test_a_level_out_of_range_says_what_is_wrong(options, error, message):
    with pytest.raises(error, match=message):
        QLevel(**options)


def test_a_level_is_a_name_or_a_qlevel():
    with pytest.raises(TypeError, match=r"level must be a QLevel or a name, one of L0, .*, got 3"):
        resolve_level(3)
    for name, level in LEVELS.items():
        assert resolve_level(f"ActNN-{name}") == resolve_level(name) == level
    with pytest.raises(ValueError, match=r"level must be one of L0, .*, got 'ActNN-L9'"):
        resolve_level("ActNN-L9")


def test_config_speaks_actnns_words():
    config = Config()
    assert config.level() == LEVELS["L3"]
    assert config.activation_compression_bits == (2, 8, 8)
    config.activation_compression_bits = [8]
    config.adaptive_conv_scheme = config.adaptive_bn_scheme = config.perlayer = False
    config.enable_quantized_bn = False
    config.use_gradient = config.swap = True
    config.initial_bits, config.group_size = 6, 64
    assert config.level() == QLevel(
        bits=(8,),
        initial_bits=6,
        group_size=64,
        per_sample=False,
        per_layer=False,
        norms=False,
        norm_adaptive=False,
        use_gradient=True,
        offload=True,
    )
    config.pergroup = False
    assert (config.pergroup, config.group_size > 1 << 39) == (False, True)
    config.pergroup = True
    assert (config.pergroup, config.group_size) == (True, 256)
    assert repr(config).startswith("Config(QLevel(compress=True, bits=(8,)")


def test_config_refuses_what_it_does_not_have():
    config = Config()
    with pytest.raises(AttributeError, match=r"settings of config are compress_activation, .*, got 'activation_bits'"):
        config.activation_bits = 4
    with pytest.raises(AttributeError, match="config has no 'simulate': every operator runs on the CPU"):
        config.simulate = True
    with pytest.raises(AttributeError, match="PYTORCH_CUDA_ALLOC_CONF"):
        config.empty_cache_threshold = 0.2
    with pytest.raises(ValueError, match="initial_bits must be from 1 to 8, got 9"):
        config.initial_bits = 9
    with pytest.raises(TypeError, match="pergroup must be True or False, got 1"):
        config.pergroup = 1
    with pytest.raises(TypeError, match="level must be a name, one of"):
        config.choose(LEVELS["L2"])
    assert config.level() == LEVELS["L3"]


DATA = TensorDataset(torch.arange(10.0) * 2, torch.arange(10) % 3)


def test_the_loader_gives_each_samples_place():
    seen = []
    for indices, (values, labels) in DataLoader(DATA, batch_size=4, shuffle=True):
        assert indices.dtype == torch.int64
        assert torch.equal(values, indices * 2.0)
        assert torch.equal(labels, indices % 3)
        seen += indices.tolist()
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 3, "drop_last": True},
        {"batch_sampler": [[1, 5], [0, 9]]},
        {"batch_size": 2, "collate_fn": lambda samples: (torch.stack([s[0] for s in samples]), None)},
        {"batch_size": None},
        {"batch_size": 4, "num_workers": 1},
    ],
    ids=lambda options: next(reversed(options)),
)
def test_the_loader_is_torchs_in_all_else(options):
    loader = DataLoader(DATA, **options)
    batches = list(loader)
    assert len(batches) == len(loader)
    for indices, (values, _) in batches:
        assert torch.equal(values, indices * 2.0)


def test_the_loader_takes_data_sets_that_fetch_batches_at_once():
    class Whole(TensorDataset):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    (indices, (values, _)), *_ = DataLoader(Whole(*DATA.tensors), batch_size=5)
    assert torch.equal(values, indices * 2.0)


def test_the_loader_refuses_streams():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(TypeError, match=r"dataset must support dataset\[i\]"):
        DataLoader(Stream())


def test_the_loaders_data_set_has_its_own_attributes():
    loader = DataLoader(DATA, batch_size=4)
    assert loader.dataset.tensors is DATA.tensors
    assert not hasattr(loader.dataset, "classes")
    copied = pickle.loads(pickle.dumps(loader.dataset))  # as to a worker
    assert len(copied) == len(DATA)

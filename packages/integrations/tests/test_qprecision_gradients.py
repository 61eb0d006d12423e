"""``use_gradient``: samples whose gradients were large get more bits when they come again."""

import pytest
import torch
from torch import nn

from integrations import qmodules
from integrations.qmodules import QBNScheme, QScheme
from integrations.qmodules.gradient_table import GradientTable
from integrations.qmodules.levels import resolve_level
from integrations.qmodules.precision import LayerPrecision


@pytest.fixture(autouse=True)
def forget():
    yield
    QScheme.num_samples = QScheme.batch = None


def level(**options):
    return resolve_level("L3", {"use_gradient": True, **options})


def same_ranges(samples):
    """Inputs whose ranges tell nothing: one sample, permuted."""
    x = torch.randn(512, generator=torch.Generator().manual_seed(0))
    return torch.stack([x.roll(i * 7) for i in range(samples)]).view(samples, 2, 16, 16)


def precision(**options):
    return LayerPrecision(level(per_layer=False, **options), "linear", 0, 9)


def learn(layer, x, squares):
    layer.codec(x)
    layer.observe(layer.token(), torch.tensor(squares).sqrt().view(-1, 1, 1, 1))


def test_readme_of_actnn():
    """The names and the order of ActNN's README."""
    config = qmodules.config
    config.use_gradient = True
    QScheme.num_samples = 40
    try:
        data = [(torch.randn(2, 16, 16), i % 3) for i in range(40)]
        torch.manual_seed(0)
        model = qmodules.QModule(nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3)))
        for _ in range(2):
            for indices, (images, labels) in qmodules.DataLoader(data, batch_size=8, shuffle=True):
                QScheme.batch = indices
                nn.functional.cross_entropy(model(images), labels).backward()
    finally:
        qmodules.set_optimization_level("L3")
    table = model[0].precision._gradients
    assert (table._values > 0).all()


def test_samples_with_larger_gradients_get_more_bits():
    QScheme.num_samples = 8
    QScheme.batch = torch.tensor([5, 1, 7, 2])
    layer, x = precision(), same_ranges(4)
    learn(layer, x, [1e4, 1.0, 1.0, 1.0])
    assert layer.codec(x).bits.tolist()[0] > 2
    QScheme.batch = torch.tensor([1, 2, 5, 7])  # the same samples in another order
    bits = layer.codec(x).bits.tolist()
    assert bits[2] == max(bits) > 2
    assert sum(bits) == 8


def test_half_old_and_half_new():
    table = GradientTable(4)
    where = torch.tensor([0, 3])
    table.update(where, torch.tensor([8.0, 2.0]))
    table.update(where, torch.tensor([4.0, 2.0]))
    assert table.lookup(where).tolist() == [6.0, 2.0]


def test_samples_not_seen_have_the_batchs_mean():
    table = GradientTable(6)
    assert table.lookup(torch.tensor([0, 1])).tolist() == [1.0, 1.0]
    table.update(torch.tensor([0, 1]), torch.tensor([2.0, 4.0]))
    assert table.lookup(torch.tensor([0, 1, 5])).tolist() == [2.0, 4.0, 3.0]


def test_an_overflow_leaves_the_table():
    table = GradientTable(3)
    where = torch.arange(3)
    table.update(where, torch.tensor([2.0, 4.0, 8.0]))
    table.update(where, torch.tensor([torch.inf, torch.nan, 8.0]))
    assert table.lookup(where).tolist() == [2.0, 4.0, 8.0]


@pytest.mark.parametrize("indices", [[0, 8], [3, 1_000_000], [-1, 2]])
def test_num_samples_too_small_for_an_index(indices):
    QScheme.num_samples = 8
    QScheme.batch = torch.tensor(indices)
    wrong = min(indices) if min(indices) < 0 else max(indices)
    with pytest.raises(ValueError, match=f"num_samples must exceed every index .* num_samples=8 and the index {wrong}"):
        precision().codec(same_ranges(2))


def test_what_is_missing_is_named():
    with pytest.raises(ValueError, match="batch must be set before each forward when use_gradient is on"):
        precision().codec(same_ranges(2))
    QScheme.batch = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="num_samples must be the size of the training set when use_gradient is on"):
        precision().codec(same_ranges(2))


def test_wrong_values_are_refused():
    with pytest.raises(ValueError, match="num_samples must be the number of samples in the training set, got 0"):
        QScheme.num_samples = 0
    with pytest.raises(TypeError, match=r"num_samples must be an int, got 1\.5"):
        QScheme.num_samples = 1.5
    with pytest.raises(TypeError, match=r"batch must hold the integer indices .*, got torch.float32"):
        QScheme.batch = torch.rand(3)
    assert QScheme.num_samples is None
    assert QScheme.batch is None


def test_norms_have_the_same_names():
    QScheme.num_samples = 5
    QScheme.batch = [0, 4]
    assert QBNScheme.num_samples == 5
    assert QBNScheme.batch.tolist() == [0, 4]


def test_a_model_may_have_a_data_set_of_its_own():
    QScheme.num_samples, QScheme.batch = 8, torch.tensor([6, 7])
    torch.manual_seed(0)
    models = [qmodules.QModule(nn.Sequential(nn.Conv2d(2, 4, 3)), level(num_samples=size)) for size in (4, 100)]
    qmodules.model_precision(models[1]).batch = torch.tensor([98, 99])
    x = same_ranges(2)
    models[1](x).sum().backward()
    with pytest.raises(ValueError, match="num_samples=4 and the index 7"):
        models[0](x)


def test_a_model_that_was_not_converted():
    with pytest.raises(ValueError, match="Sequential is not converted; call"):
        qmodules.model_precision(nn.Sequential(nn.Linear(2, 2)))


def test_another_batch_dimension_goes_by_the_mean():
    """A detection head's input has a row for each proposal: the data set's indices are not theirs."""
    QScheme.num_samples, QScheme.batch = 8, torch.tensor([0, 1])
    layer = precision()
    codec = layer.codec(same_ranges(6))
    assert codec.bits.sum() == 12
    layer.observe(layer.token(), torch.rand(6, 3))
    assert not layer._table()._on(torch.device("cpu")).any()


def test_indices_of_the_batch_that_was_set():
    """They are checked and moved once for all layers; the tensor may be reused for the next batch after that is set."""
    QScheme.num_samples = 8
    QScheme.batch = torch.tensor([0, 1])
    layers = [precision(), precision()]
    for layer in layers:
        learn(layer, same_ranges(2), [3.0, 5.0])
    for layer in layers:
        assert layer._table().lookup(torch.tensor([1, 0])).tolist() == [5.0, 3.0]

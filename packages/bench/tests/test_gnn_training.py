import pytest
import torch

from bench.models.graph_networks import MODELS
from bench.suites.gnn import training
from bench.suites.gnn.entries import Curve
from bench.suites.gnn.training import Run, train_in_turn


def trained(model, level, graph, epochs=3, seed=0):
    run = Run(model, level, seed, graph)
    run.train(epochs)
    return run


@pytest.mark.parametrize("level", [None, "L1"])
@pytest.mark.parametrize("model", MODELS)
def test_two_runs_with_one_seed_give_the_same_losses_bit_for_bit(model, level, graph):
    first, second = trained(model, level, graph).curve, trained(model, level, graph).curve
    assert first.losses == second.losses
    assert first.test == second.test


@pytest.mark.parametrize("model", MODELS)
def test_at_l0_losses_and_weights_are_those_of_the_untouched_model(model, graph):
    plain, off = trained(model, None, graph), trained(model, "L0", graph)
    assert plain.curve.losses == off.curve.losses
    for untouched, compressed in zip(plain.network.parameters(), off.network.parameters(), strict=True):
        assert torch.equal(untouched, compressed)


def test_another_seed_is_another_run(graph):
    assert trained("gcn", None, graph).curve.losses != trained("gcn", None, graph, seed=1).curve.losses


@pytest.mark.parametrize("model", MODELS)
def test_paired_runs_start_alike_and_drop_alike(model, graph):
    plain, compressed = trained(model, None, graph, epochs=1), trained(model, "L1.2", graph, epochs=1)
    assert plain.curve.losses == compressed.curve.losses  # the forward is exact, so the first loss is the same


def test_taking_turns_changes_nothing(graph):
    epochs = training.BLOCK + 2
    together = train_in_turn("gcn", [None, "L1"], 0, graph, epochs)
    alone = Run("gcn", "L1", 0, graph)
    alone.train(epochs)
    assert together[1].losses == alone.curve.losses
    assert [len(curve.block_seconds) for curve in together] == [2, 2]


def test_torch_s_own_generator_is_left_alone(graph):
    state = torch.get_rng_state()
    trained("gcn", "L1", graph)
    assert torch.equal(torch.get_rng_state(), state)


def test_it_learns(graph):
    curve = trained("gcn", "L1", graph, epochs=20).curve
    assert curve.losses[-1] < curve.losses[0] / 2
    assert curve.test_accuracy > 80


def test_the_best_epoch_is_the_first_with_the_best_validation_accuracy():
    curve = Curve("gcn", "L0", 0, [3.0, 2.0, 1.0], [10.0, 30.0, 30.0], [11.0, 31.0, 32.0])
    assert curve.best_epoch == 1
    assert curve.test_accuracy == 31.0


def test_the_final_loss_is_the_mean_of_the_last_ten_epochs():
    assert Curve("gcn", "L0", 0, losses=[100.0, *[1.0, 3.0] * 5]).final_loss == 2.0
    assert Curve("gcn", "L0", 0, losses=[1.0, 2.0]).final_loss == 1.5


def test_seconds_of_an_epoch_know_the_shorter_last_turn():
    curve = Curve("gcn", "L0", 0, losses=[1.0] * 7, block_seconds=[10.0, 6.0])
    assert curve.epoch_seconds == [2.0, 3.0]

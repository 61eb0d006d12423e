"""The random matrices behind ``RandomizedLinear``: their noise, their blocks, and that no one of them is ever whole."""

import pytest
import scipy.fft
import torch

from actcore.reference.philox import philox as slow_philox
from integrations.fewbit.sketches import lift, operators, project, runs, sample_features, sample_tokens
from integrations.fewbit.sketches.keys import philox, subsets, uniforms

from .nets import normal

DENSE = ("gaussian", "rademacher", "dct", "dft")


def key(seed=3, stream=4):
    return torch.tensor([seed, stream])


def whole(kind, tokens, rows, block_size=None, noise=None):
    """``S`` itself, as it applies to the identity."""
    return project(torch.eye(tokens, dtype=torch.float64), key() if noise is None else noise, kind, rows, block_size)


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (7, 1), (-(2**63), 2**63 - 1), (0x123456789ABCDEF, -1)])
def test_noise_is_philox_word_for_word(seed, stream):
    counters = torch.tensor([0, 1, 5, 2**32 - 1, 2**32 + 3, 77 << 32])
    words = philox(key(seed, stream), counters & 0xFFFFFFFF, counters >> 32)
    assert torch.equal(torch.stack(words, dim=1), slow_philox(seed, stream, counters))


@pytest.mark.parametrize("tokens", [1, 2, 7, 100, 1023, 4096])
@pytest.mark.parametrize("block_size", [None, 1, 3, 64, 5000])
def test_blocks_cover_tokens_and_rows_evenly(tokens, block_size):
    for rows in {1, (tokens + 1) // 2, max(1, tokens - 1), tokens}:
        found = runs(tokens, rows, block_size)
        sizes = [(run.tokens, run.rows) for run in found for _ in range(run.blocks)]
        assert len(found) <= 3
        assert [sum(part) for part in zip(*sizes, strict=True)] == [tokens, rows]
        assert all(1 <= height <= width for width, height in sizes)
        assert max(sizes)[0] - min(sizes)[0] <= 1
        assert len({height for _, height in sizes}) <= 2
        if block_size is not None and rows * block_size >= tokens:
            assert max(sizes)[0] <= block_size
        block = token = row = 0
        for run in found:
            assert (run.first_block, run.first_token, run.first_row) == (block, token, row)
            block, token, row = block + run.blocks, token + run.blocks * run.tokens, row + run.blocks * run.rows


@pytest.mark.parametrize("kind", DENSE)
def test_a_sketch_is_block_diagonal_and_its_blocks_differ(kind):
    sketch = whole(kind, 24, 8, block_size=12)
    assert (sketch[:4, 12:] == 0).all()
    assert (sketch[4:, :12] == 0).all()
    assert (sketch[:4, :12] != 0).any()
    assert not torch.equal(sketch[:4, :12], sketch[4:, 12:])


@pytest.mark.parametrize("kind", DENSE)
@pytest.mark.parametrize("block_size", [None, 100])
def test_tiles_are_parts_of_one_matrix(kind, block_size, monkeypatch):
    """However few entries are there at a time: tiles of 128 rows and tokens, one block at a time."""
    matrix = normal(300, 3, dtype=torch.float64)
    expected = project(matrix, key(), kind, 140, block_size)
    torch.testing.assert_close(whole(kind, 300, 140, block_size) @ matrix, expected, rtol=0, atol=1e-12)
    monkeypatch.setattr(operators, "_TILE", 128)
    monkeypatch.setattr(operators, "_ENTRIES", {"cpu": 1})
    torch.testing.assert_close(project(matrix, key(), kind, 140, block_size), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", DENSE)
def test_lift_is_the_transpose(kind):
    sketch = whole(kind, 50, 20, block_size=16)
    given = normal(20, 3, dtype=torch.float64)
    torch.testing.assert_close(lift(given, key(), kind, 50, 16), sketch.t() @ given, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", DENSE)
def test_operators_pass_opcheck(kind):
    matrix = normal(40, 3, dtype=torch.float64).requires_grad_()
    torch.library.opcheck(project, (matrix, key(), kind, 12, 16))
    torch.library.opcheck(lift, (matrix, key(), kind, 70, 16))


def test_entries():
    signs = whole("rademacher", 200, 64)
    assert torch.equal(signs.abs(), torch.full_like(signs, 1 / 8))
    assert abs(signs.sum().item() * 8) < 4 * (200 * 64) ** 0.5  # four standard deviations
    numbers = whole("gaussian", 200, 64).flatten() * 8
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):  # moments, and their variance
        assert abs(numbers.pow(power).mean().item() - mean) < 4 * (variance / numbers.numel()) ** 0.5


@pytest.mark.parametrize("tokens", [8, 9])
def test_transforms_are_orthonormal_with_signs_and_chosen_rows(tokens):
    """With all rows they are the whole transform, its rows in another order and its columns with signs."""
    identity = torch.eye(tokens, dtype=torch.float64)
    cosines = torch.from_numpy(scipy.fft.dct(identity.numpy(), axis=0, norm="ortho"))
    spectrum = torch.fft.fft(identity, dim=0, norm="ortho")
    for kind, transform in (("dct", cosines), ("dft", spectrum.real - spectrum.imag)):
        found = whole(kind, tokens, tokens)
        torch.testing.assert_close(found @ found.t(), identity, rtol=0, atol=1e-12)
        matches = (found.abs()[:, None] - transform.abs()[None]).abs().amax(2) < 1e-12
        assert matches.any(1).all()
        assert matches.any(0).all()
        part = whole(kind, tokens, 4)
        torch.testing.assert_close(part.square().sum(), torch.tensor(float(tokens)).double())  # n rows' worth of norm


def test_uniform_numbers_and_subsets():
    numbers = uniforms(key(), 10001)
    assert numbers.shape == (10001,)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean().item() - 0.5) < 4 * (1 / 12 / 10001) ** 0.5
    chosen = subsets(key(), 3, 10, torch.arange(4000))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    # Each of 10 numbers is in a subset with probability 0.3: four standard deviations of 4000 draws.
    assert (chosen.flatten().bincount() - 1200).abs().max() < 4 * (4000 * 0.3 * 0.7) ** 0.5
    assert sorted(sample_features(key(), 5, 5).tolist()) == [0, 1, 2, 3, 4]


def test_tokens_are_sampled_by_their_norm():
    x = normal(6, 4, dtype=torch.float64) * torch.tensor([0.0, 1, 2, 3, 0, 4]).double()[:, None]
    tokens, weights = sample_tokens(x, key(), 20000)
    share = x.norm(dim=1) / x.norm(dim=1).sum()
    found = tokens.bincount(minlength=6) / 20000
    assert ((found - share).abs() <= 4 * (share * (1 - share) / 20000).sqrt()).all()  # none of norm 0
    torch.testing.assert_close(weights, 1 / (20000 * share[tokens]))
    _, weights = sample_tokens(torch.zeros(5, 2), key(), 3)
    assert weights.isfinite().all()


def test_keys_decide_the_sketch():
    same, other_seed, other_stream = whole("gaussian", 9, 3), key(5, 4), key(3, 5)
    assert torch.equal(whole("gaussian", 9, 3), same)
    assert not torch.equal(whole("gaussian", 9, 3, noise=other_seed), same)
    assert not torch.equal(whole("gaussian", 9, 3, noise=other_stream), same)

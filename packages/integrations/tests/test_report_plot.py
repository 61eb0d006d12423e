"""The chart of a report: memory over one step, and by module; and the order in which a step lets tensors go."""

import itertools
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import integrations
from integrations import Report, Row
from integrations.report.timeline import make_bands
from integrations.report.tree import MODEL, cut, make_tree
from integrations.report.words import format_bytes

from .nets import mlp, normal


def row(module, before, after, owner="", host=False):
    return Row(module, "op", "input", (before,), torch.uint8, "codec", before, after, "why", owner, host)


def make_report(model, x):
    integrations.compress_model(model)
    model(x).sum().backward()
    return integrations.compression(model).report()


class Token:
    def __init__(self, tensor):
        self.tensor = tensor


def test_backward_lets_go_in_the_reverse_order_of_saving():
    """The fact on which the timeline stands, of a graph that forks and joins: torch's own order of release."""
    saved, released = [], []

    def pack(tensor):
        token = Token(tensor.detach())
        weakref.finalize(token, released.append, len(saved))
        saved.append(None)
        return token

    x = torch.rand(4, requires_grad=True)
    with saved_tensors_hooks(pack, lambda token: token.tensor):
        trunk = x.exp()
        left = trunk.sin().tanh()
        right = trunk.cos()
        for _ in range(3):
            right = right.sigmoid()
        loss = (left.exp() + right.tanh() + trunk.sinh()).cosh().sum()
    assert not released
    loss.backward()
    assert len(saved) == 11
    assert released == list(reversed(range(11)))


def test_a_step_grows_to_the_sums_and_shrinks_to_nothing():
    rows = [row("a", 8, 2), row("a", 0, 0, owner="parameter"), row("b", 4, 4), row("c", 0, 1)]
    moments = Report("L1", rows).timeline()
    assert [moment.original_bytes for moment in moments] == [0, 8, 12, 12, 12, 8, 0]
    assert [moment.device_bytes for moment in moments] == [0, 2, 6, 7, 6, 2, 0]
    assert [moment.module for moment in moments] == ["", "a", "b", "c", "c", "b", "a"]
    assert {moment.host_bytes for moment in moments} == {0}


def test_what_went_to_the_host_is_counted_apart():
    moments = Report("L3", [row("a", 8, 2, host=True), row("b", 4, 1)]).timeline()
    assert [(moment.device_bytes, moment.host_bytes) for moment in moments] == [(0, 0), (0, 2), (1, 2), (0, 2), (0, 0)]


def test_the_timeline_of_a_model_peaks_at_the_report_s_sums():
    report = make_report(mlp(), normal(48, 64))
    saved = [row for row in report.rows if not row.owner]
    moments = report.timeline()
    turn = moments[len(saved)]
    assert turn.original_bytes == max(moment.original_bytes for moment in moments) == report.original_bytes
    assert turn.device_bytes == max(moment.device_bytes for moment in moments) == report.stored_bytes
    bands = make_bands(saved, 8)
    assert (bands[0].start, bands[-1].end) == (0, len(saved))
    assert all(one.end == other.start for one, other in itertools.pairwise(bands))


def blocks(count):
    rows = [row("stem", 10, 1)]
    for number in range(count):
        rows += [row(f"blocks.{number}.attn", 60, 10), row(f"blocks.{number}.mlp", 40, 10)]
    return [*rows, row("", 5, 5)]


@pytest.mark.parametrize("count", [1, 3, 6, 24])
@pytest.mark.parametrize("most", [1, 2, 5, 8, 16])
def test_parts_are_few_and_all_of_the_model(count, most):
    root = make_tree(blocks(count))
    parts = cut(root, most)
    assert len(parts) <= most
    assert sum(part.original_bytes for part in parts) == root.original_bytes == 15 + 100 * count
    assert len({part.path for part in parts}) == len(parts)


def test_a_part_that_is_most_of_the_model_is_opened():
    assert [part.path for part in cut(make_tree(blocks(24)), 6)] == [
        "",
        "stem",
        *("blocks.0 to 5", "blocks.6 to 11", "blocks.12 to 17", "blocks.18 to 23"),
    ]


def test_the_tree_sums_modules_and_merges_chains():
    root = make_tree([row("a.b.c", 8, 2), row("a.b.d", 2, 2), row("x.y", 1, 1), row("z", 0, 0, owner="buffer")])
    assert (root.name, root.original_bytes, root.stored_bytes) == (MODEL, 11, 5)
    assert [(part.name, part.path) for part in root.parts] == [("a.b", "a.b"), ("x.y", "x.y")]
    assert [(part.name, part.original_bytes) for part in root.parts[0].parts] == [("c", 8), ("d", 2)]


def test_the_table_has_modules_with_their_sums():
    report = make_report(nn.Sequential(mlp(), nn.LayerNorm(64)), normal(48, 64))
    text = str(report)
    assert "share" in text
    assert "100.0%" in text
    lines = [line for line in text.splitlines() if "(model)" in line]
    assert len(lines) == 1
    assert format_bytes(report.original_bytes) in lines[0]


def test_a_table_of_modules_has_their_depth():
    report = Report("L1", blocks(2))
    names = [[cell.name for cell in report.table(depth=depth).columns[0].cells] for depth in (0, 1, 2)]
    assert names == [
        ["(model)"],
        ["(model)", "(itself)", "stem", "blocks"],
        ["(model)", "(itself)", "stem", "blocks", "0", "1"],
    ]


@pytest.mark.parametrize(("depth", "error"), [(-1, ValueError), (1.0, TypeError), (True, TypeError)])
def test_a_depth_is_a_number(depth, error):
    with pytest.raises(error, match="depth must be"):
        Report("L1", []).table(depth)


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_chart_is_drawn(tmp_path, kind):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"memory.{kind}"
    make_report(nn.Sequential(mlp(), nn.LayerNorm(64)), normal(48, 64)).plot(path)
    content = path.read_bytes()
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        width, height = (int.from_bytes(content[place : place + 4]) for place in (16, 20))
        assert (width, height) == (1840, 800)
    else:
        assert b"<svg" in content
    assert len(content) > 10_000  # not an empty pair of axes, which takes 6 kB


def test_what_went_to_the_host_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    Report("L3", [row("a", 8, 2, host=True), row("b", 4, 1)]).plot(tmp_path / "memory.png")
    assert (tmp_path / "memory.png").stat().st_size > 10_000


def test_nothing_cannot_be_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="there is nothing to draw"):
        Report("L1", [row("a", 0, 0, owner="parameter")]).plot(tmp_path / "memory.png")


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install actcore-integrations\[plot\]"):
        Report("L1", [row("a", 8, 2)]).plot(tmp_path / "memory.png")

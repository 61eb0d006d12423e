"""The report: one row a saved tensor, sums that add up, a table that can be read."""

import dataclasses
from io import StringIO

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

import integrations
from integrations import Report, Row
from integrations.fewbit import RandomizedLinear
from integrations.policies.policy import FixedBits
from integrations.report.words import format_bytes
from integrations.tracing.storage.records import RECOMPUTED

from .graph_tensors import saved_tensors
from .nets import Net, mlp, normal

X = normal(48, 64)
N = X.numel()


def classifier():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 64),
        nn.LayerNorm(64),
        nn.ReLU(),
        nn.Dropout(),
        nn.Sequential(nn.Linear(64, 64), nn.GELU()),
        nn.Linear(64, 10),
    )


@pytest.fixture
def report():
    model = integrations.compress_model(classifier())
    model(X).sum().backward()
    return integrations.compression(model).report()


def test_a_row_says_everything(report):
    found = [row for row in report.rows if row.module == "2"]
    assert found == [
        integrations.Row(
            module="2",
            operator="relu",
            role="result",
            shape=(48, 64),
            dtype=torch.float32,
            codec="Positive()",
            original_bytes=4 * N,
            stored_bytes=N // 8,
            why="backward asks only whether it is positive: one exact bit",
            owner="",
        )
    ]


def test_rows_are_in_the_order_of_saving(report):
    assert [(row.module, row.operator) for row in report.rows if not row.owner] == [
        ("1", "layer_norm"),
        ("1", "layer_norm"),
        ("1", "layer_norm"),
        ("2", "relu"),
        ("3", "dropout"),
        ("4.0", "linear"),
        ("4.1", "gelu"),
        ("5", "linear"),
    ]


def test_sums_are_those_of_the_rows(report):
    """Values of b bits take b bits an element and eight bytes a group of 256, in a linear input of 128, in a norm's
    input of one row of 64; nothing else is counted."""
    groups = 8 * N // 256
    assert report.original_bytes == sum(row.original_bytes for row in report.rows) == 6 * 4 * N + 2 * 48 * 4
    stored = (
        (N + 8 * N // 64) + 2 * 48 * 4 + N // 8 + N // 8 + (N // 2 + 2 * groups) + (N + groups) + (N // 2 + 2 * groups)
    )
    assert report.stored_bytes == sum(row.stored_bytes for row in report.rows) == stored
    assert report.ratio == report.original_bytes / report.stored_bytes


def test_what_somebody_else_keeps_alive_counts_nothing(report):
    owned = [row for row in report.rows if row.owner]
    assert {row.owner for row in owned} == {"parameter", "input of the model"}
    assert all((row.original_bytes, row.stored_bytes, row.codec) == (0, 0, "kept") for row in owned)


def test_every_row_has_a_reason(report):
    assert all(row.why for row in report.rows)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        (torch.cosh, "cosh"),
        (lambda h: F.elu(h, 0.5), "elu with alpha=0.5"),
        (lambda h: h**5, "pow with exponent=5"),
        (lambda h: h.relu() ** 1.5, "pow with exponent=1.5"),
        (lambda h: F.softplus(h, 1.0, 9.5), "softplus with threshold=9.5"),
        (lambda h: F.softplus(h, 2, threshold=1), "softplus with beta=2, threshold=1"),
        (lambda h: h.abs() ** torch.tensor(2.0), "pow with exponent=a tensor"),
    ],
)
def test_an_operator_without_a_rule_is_named(operator, name):
    model = integrations.compress_model(Net(lambda self, x: operator(F.linear(x, self.w)), w=normal(64, 64)))
    model(X).sum().backward()
    reasons = {row.why for row in integrations.compression(model).report().rows if row.codec == "kept"}
    assert f"no rule for {name}: kept exactly" in reasons


def test_an_argument_that_changes_from_step_to_step_is_no_part_of_a_name():
    """Only of the reason: the name stands for a tensor in plans and in its noise, and is remembered."""
    model = Net(lambda self, x: F.softplus(F.linear(x, self.w), self.beta), w=normal(64, 64))
    handle = integrations.compression(integrations.compress_model(model))
    for model.beta in (2.0, 2.5, 3.0):
        model(X).sum().backward()
        [row] = [row for row in handle.report().rows if row.operator != "linear"]
        assert row.operator == "softplus with another beta"
        assert row.why == f"no rule for softplus with beta={model.beta}: kept exactly"
    assert len(handle._specs.under(FixedBits(handle.level))._specs) == 2  # the inputs of linear and of softplus


def printed(table, width):
    text = StringIO()
    Console(file=text, width=width).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_the_table(report):
    lines = printed(report.table(), 160)
    text = "\n".join(lines)
    assert lines[0] == "L1: saved 72.4 -> 11.0 KiB (6.6x); step peak 51.4 -> 23.8 KiB, estimated"
    for word in (
        "module",
        "operator",
        "shape",
        "dtype",
        "codec",
        "before",
        "after",
        "why",
        "48x64 float32",
        "12.0 KiB",
    ):
        assert word in text, word
    assert "Not compressed, because other references keep them alive: 1 x input of the model," in text
    assert max(map(len, lines)) <= 160
    assert "input of the model" not in "\n".join(lines[3:-1])  # owned tensors are not listed one by one


@pytest.mark.parametrize("table", [lambda report: report.table(), lambda report: report.table(depth=3), str])
def test_what_is_printed_fits_80_columns_with_whole_words(table, monkeypatch):
    """The table wrapped every five characters, also in numbers."""
    monkeypatch.setenv("COLUMNS", "80")
    report = Report("L1", [long_row("softmax")], original_peak_bytes=9 << 20, peak_bytes=5 << 20, peak_source="planned")
    shown = table(report)
    lines = shown.splitlines() if isinstance(shown, str) else printed(shown, 80)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "1023.9 MiB" in text
    assert "127.9 MiB" in text
    assert "self_attention" in text
    words = set(" ".join(lines).replace("…", " ").split())
    assert not isinstance(shown, str) or {"softmax", "operators", "smaller", "100.0%"} <= words
    for line in lines:  # numbers keep their units
        assert not line.endswith((" 1023.9", " 127.9"))


def long_row(operator, module="base_model.model.model.layers.23.self_attention", before=1023.9, after=127.9):
    count, kept = round(before * 2**20), round(after * 2**20)
    codec = "GroupAffine(bits=4, group_size=256, rounding='stochastic')"
    return Row(module, operator, "input", (count // 4,), torch.float32, codec, count, kept, "a long reason " * 9, "")


def test_a_summary_leaves_out_what_is_small_and_deep():
    rows = [
        *(row(f"net.stage{stage}.block.{number}.conv", 1000, 100) for stage in range(2) for number in range(3)),
        row("net.tiny", 5, 0),
        row("net.head", 100, 50),
    ]
    lines = str(Report("L1", rows)).splitlines()
    assert [line.split()[0] for line in lines[3:] if line.startswith(("(model)", " "))] == [
        *(
            "(model)",
            "net.stage0.block",
            "0.conv",
            "1.conv",
            "2.conv",
            "net.stage1.block",
            "0.conv",
            "1.conv",
            "2.conv",
        ),
        "net.head",
    ]
    assert (
        "Left out: 1 part below 0.1%. report.table() lists every tensor; report.html(path) has all of it."
        in " ".join(" ".join(lines).split())
    )
    assert "net.tiny" in " ".join(printed(Report("L1", rows).table(depth=2), 160))


def test_wrappers_of_one_module_are_no_levels():
    """PEFT's ``base_model.model`` took both levels of a summary, and hid the parts of the model."""
    inner = [
        row(f"base_model.model.layers.{number}.{part}", 100, 10) for number in range(2) for part in ("attn", "mlp")
    ]
    others = row("base_model.model.norm", 50, 10), row("", 40, 40), row("base_model", 0, 30)
    text = str(Report("L1", [*inner, *others]))
    names = [line.split()[0] for line in text.splitlines()[3:] if line.startswith(("(model)", " "))]
    assert names == [
        *("(model)", "(itself)", "base_model.(itself)", "base_model.model.layers", "0", "1", "base_model.model.norm")
    ]


def test_what_is_recomputed_has_a_word_in_the_place_of_a_ratio():
    rows = [row("a", 80, 0, RECOMPUTED), row("b", 80, 10), row("c", 8, 0)]
    lines = str(Report("a plan", rows)).splitlines()
    assert [line.split()[-1] for line in lines[4:7]] == ["recomputed", "8.0", "4.8%"]


def row(module, before, after, codec="codec"):
    return Row(module, "op", "input", (before,), torch.uint8, codec, before, after, "why", "")


def test_before_the_first_step():
    report = integrations.compression(integrations.compress_model(mlp())).report()
    assert (list(report.rows), report.original_bytes, report.stored_bytes, report.ratio) == ([], 0, 0, 1.0)
    assert "No forward has been compressed yet: call the model itself" in " ".join(str(report).split())


def test_before_the_first_training_step():
    model = integrations.compress_model(mlp()).eval()
    model(X)
    assert "No forward has been compressed yet" in " ".join(str(integrations.compression(model).report()).split())


def test_the_report_is_of_the_last_forward():
    model = integrations.compress_model(mlp())
    handle = integrations.compression(model)
    for batch in (X, X[:24]):
        model(batch).sum().backward()
    assert {row.shape[0] for row in handle.report().rows if not row.owner} == {24}
    model.eval()(X)
    assert {row.shape[0] for row in handle.report().rows if not row.owner} == {24}


def test_a_report_does_not_change_with_the_next_forward(report):
    model = integrations.compress_model(mlp())
    model(X).sum().backward()
    first = integrations.compression(model).report()
    rows = list(first.rows)
    model(X[:8]).sum().backward()
    assert list(first.rows) == rows
    with pytest.raises(dataclasses.FrozenInstanceError):
        rows[0].module = "other"


def test_a_block_reports_its_loss():
    model, labels = mlp(), torch.arange(48)
    with integrations.compress(model) as handle:
        F.cross_entropy(model(X), labels).backward()
    last = handle.report().rows[-1]
    assert (last.module, last.operator) == ("", "cross_entropy")
    assert any(row.why.startswith("backward takes exp() of it") for row in handle.report().rows)
    assert "(model)" in str(handle.report())


def test_names_with_brackets_are_not_markup():
    """rich would read ``[red]`` as a colour and drop it."""
    model = nn.Module()
    model.add_module("[red]", mlp())
    model.forward = model._modules["[red]"].forward
    integrations.compress_model(model)
    model(X).sum().backward()
    assert "[red]" in str(integrations.compression(model).report())


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1 << 20, "1.0 MiB"), (5 << 29, "2.50 GiB")],
)
def test_bytes_in_words(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize("matmul", ["gaussian", "rows"])
def test_a_sketch_has_the_name_of_what_saves_it(matmul):
    model = nn.Sequential(nn.Linear(64, 64), RandomizedLinear(64, 64, proj_dim=32, matmul=matmul))
    integrations.compress_model(model)
    model(X).sum().backward()
    [row] = [row for row in integrations.compression(model).report().rows if row.module == "1" and not row.owner]
    assert (row.operator, row.role, row.codec) == ("linear_randomized", "input", "sketch of 32 rows")


@pytest.mark.parametrize("level", ["L1", "L1.1", "L1.2"])
def test_the_stored_bytes_are_those_that_the_graph_holds(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(), nn.Linear(256, 4))
    x = torch.randn(64, 256)
    integrations.compress_model(model, level)
    exactly = {tensor.untyped_storage()._cdata for tensor in (x, *model.parameters())}
    saved = [tensor for tensor in saved_tensors(model(x)) if tensor.untyped_storage()._cdata not in exactly]
    stored = integrations.compression(model).report().stored_bytes
    assert sum(tensor.untyped_storage().nbytes() for tensor in saved) == stored

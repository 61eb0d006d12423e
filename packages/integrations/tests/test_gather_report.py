"""``gather_report``: one rank's report with the sums of all ranks."""

import json

import pytest
import torch

import integrations
from integrations import RankSummary, Report
from integrations.api import ranks as gathering

from .nets import mlp, normal
from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found (see ``gather_report_child.py``)."""
    return run_two_ranks("gather_report_child.py", tmp_path_factory.mktemp("ranks") / "meet")


@pytest.fixture
def one_rank():
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WAYS = "data_parallel", "sharded", "tensor_parallel", "pipeline"


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_has_the_sums_of_all_ranks(found, way):
    expected = [{"rank": rank, "error": "", **ranks[way]["own"]} for rank, ranks in enumerate(found)]
    for ranks in found:
        assert ranks[way]["ranks"] == expected
        assert ranks[way]["note"] == ""
    assert all(one["original_bytes"] > one["stored_bytes"] > 0 for one in expected)


def test_planned_peaks_are_in_the_table(found):
    for ranks in found:
        [*_, head, _, first, second] = ranks["data_parallel"]["text"].splitlines()
        assert head.split() == ["rank", "before", "after", "smaller", "step", "peak", "measured"]
        assert [line.split()[0] for line in (first, second)] == ["0", "1"]
        assert all(", planned" in line for line in (first, second))
    assert found[0]["data_parallel"]["own"]["peak_source"] == "planned"


def test_stages_of_a_pipeline_differ(found):
    one, other = found[0]["pipeline"]["ranks"]
    assert (one["level"], other["level"]) == ("L1 with min_bytes=0", "L1.1 with min_bytes=0")
    assert one["original_bytes"] < other["original_bytes"]


@pytest.mark.parametrize("way", ["one_compressed", "no module"])
def test_a_rank_without_a_report_does_not_make_the_others_wait(found, way):
    message = {
        "one_compressed": "ValueError: Sequential is not compressed; call compress_model",
        "no module": "TypeError: model must be a torch.nn.Module, got NoneType",
    }[way]
    first, second = (ranks[way] for ranks in found)
    assert [bool(one["error"]) for one in first["ranks"]] == [False, True]
    assert f"Rank 1 has no report: {message}" in " ".join(first["text"].split())
    assert first["ranks"] == second["ranks"]
    assert second["note"].startswith(message)


def test_no_rank_has_a_report(found):
    for ranks in found:
        assert ranks["none"]["error"].startswith("ValueError: Sequential is not compressed; call compress_model")


def test_a_group_of_some_ranks(found):
    outside, inside = (ranks["group"] for ranks in found)
    assert outside["error"] == (
        "ValueError: group must contain the rank that calls gather_report, got a group without rank 0"
    )
    assert [one["rank"] for one in inside["ranks"]] == [1]


def test_without_a_process_group():
    with pytest.raises(RuntimeError, match="needs an initialized process group"):
        integrations.gather_report(integrations.compress_model(mlp()))


@pytest.mark.usefixtures("one_rank")
def test_measured_peaks_are_in_the_table(monkeypatch):
    """No CPU measures a peak."""

    class Handle:
        def report(self):
            return Report(
                "L0", [], original_peak_bytes=4096, peak_bytes=2048, peak_source="planned", measured_peak_bytes=1536
            )

    monkeypatch.setattr(gathering, "compression", lambda model: Handle())
    report = integrations.gather_report(mlp())
    assert report.ranks == (RankSummary(0, "L0", 0, 0, 4096, 2048, "planned", 1536),)
    last = str(report).splitlines()[-1]
    assert " ".join(last.split()) == "0 0 B 0 B 1.0 4.0 -> 2.0 KiB, planned 1.5 KiB"


@pytest.mark.usefixtures("one_rank")
def test_as_json_and_as_a_page(tmp_path):
    model = integrations.compress_model(mlp(64), level="L1", min_bytes=0)
    model(normal(32, 64)).sum().backward()
    report = integrations.gather_report(model)
    assert Report.from_json(report.to_json()) == report
    assert json.loads(report.to_json())["ranks"][0]["stored_bytes"] == report.stored_bytes
    report.html(tmp_path / "report.html")
    integrations.compression(model).report().html(tmp_path / "alone.html")
    page, alone = ((tmp_path / name).read_text(encoding="utf-8") for name in ("report.html", "alone.html"))
    assert "<h2>Ranks</h2>" in page
    assert "<h2>Ranks</h2>" not in alone

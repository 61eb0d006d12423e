"""The report's page: it holds all that it shows, and a browser shows it."""

import re
import shutil
import subprocess
import sys

import pytest
import torch
from torch import nn

import integrations
from integrations import Report, Row
from integrations.report.words import format_bytes
from integrations.tracing.storage.records import RECOMPUTED

from .nets import mlp, normal

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def row(module, before=8, after=2, why="why"):
    return Row(module, "op", "input", (before,), torch.uint8, "codec", before, after, why, "")


@pytest.fixture(scope="module")
def report():
    model = nn.Sequential(mlp(), nn.LayerNorm(64), nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)))
    integrations.compress_model(model)
    model(normal(48, 64)).sum().backward()
    return integrations.compression(model).report()


def written(report, tmp_path):
    report.html(tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_it_fetches_nothing_and_may_not(report, tmp_path):
    page = written(report, tmp_path)
    assert "default-src 'none'" in page
    fetched = r"https?:|//\w|<link|<img|<iframe|@import|\bsrc=|fetch\("
    assert not re.findall(fetched + r'|url\((?!#)|\bhref=(?!"#)', page)  # "#" is a place in the page itself


def test_it_says_all_that_the_report_does(report, tmp_path):
    page = written(report, tmp_path)
    for text in (report.title.replace(">", "&gt;"), "GroupAffine(bits=4, group_size=128)", "layer_norm input", "48x64"):
        assert text in page, text
    assert page.count("<tr ") >= sum(not row.owner for row in report.rows)
    assert "$" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)  # nothing of the template is left


def test_names_and_reasons_are_text(tmp_path):
    page = written(Report("L1", [row('<b>"&', why="<script>alert(1)</script>"), row("b")], model="<i>"), tmp_path)
    assert '<b>"' not in page
    assert "alert(1)</script>" not in page
    assert "&lt;b&gt;&quot;&amp;" in page


def test_the_bar_of_what_is_recomputed_says_so(tmp_path):
    pytest.importorskip("matplotlib")
    again = Row("a", "op", "input", (8,), torch.uint8, RECOMPUTED, 8, 0, "why", "")
    page = written(Report("a plan", [again, row("b", before=16)]), tmp_path)
    assert "8 B, recomputed</text>" in page
    assert "16 B, 8.0×</text>" in page


def test_its_chart_is_that_of_plot(report, tmp_path):
    pytest.importorskip("matplotlib")
    page, again = written(report, tmp_path), written(report, tmp_path)
    assert page == again
    assert page.count("<svg") == 1
    for text in (f"{format_bytes(report.original_bytes)} uncompressed", "forward  →", "Over one step"):
        assert text in page, text
    chart = page[page.index("<svg") : page.index("</svg>")]
    assert "var(--before)" in chart
    assert not re.findall(r"#[0-9a-f]{6}\b", chart)  # each color follows the page's style


def test_a_module_named_like_a_formula_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    page = written(Report("L1", [row(r"$\undefined$"), row("b")]), tmp_path)
    assert r"$\undefined$</text>" in page


def test_what_went_to_the_host_is_in_the_chart(tmp_path):
    pytest.importorskip("matplotlib")
    moved = Row("a", "op", "input", (8,), torch.uint8, "codec", 8, 2, "why", "", host=True)
    assert "of that, on the device" in written(Report("L3", [moved, row("b", 4, 1)]), tmp_path)
    assert "of that, on the device" not in written(Report("L3", [row("b", 4, 1)]), tmp_path)


def test_without_matplotlib_the_page_says_what_its_chart_needs(report, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    page = written(report, tmp_path)
    assert "<svg" not in page
    assert "pip install actcore-integrations[plot]" in page
    assert page.count("<tr ") >= sum(not row.owner for row in report.rows)


def test_a_report_of_nothing_has_a_page(tmp_path):
    page = written(integrations.compression(integrations.compress_model(mlp())).report(), tmp_path)
    assert "No forward has been compressed yet" in page
    assert "<svg" not in page


def test_a_folder_that_is_not_there_raises(report, tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        report.html(tmp_path / "nowhere" / "report.html")


def browsed(path, tmp_path, *options):
    return subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"),
            *("--virtual-time-budget=2000", *options, path.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )


@pytest.mark.skipif(BROWSER is None, reason="no chromium and no chrome is on the path")
def test_a_browser_shows_it(report, tmp_path):
    """The script counts what is shown: the model and its parts at first, everything once all is opened."""
    page = written(report, tmp_path)
    shown = re.search(
        r'<html[^>]* data-shown="(\d+)"', browsed(tmp_path / "report.html", tmp_path, "--dump-dom").stdout
    )
    assert shown is not None
    assert int(shown[1]) == 4  # the model and its three parts
    all_opened = tmp_path / "opened.html"
    click = "<script>document.querySelector('[data-open=\"1\"]').click()</script></body>"
    all_opened.write_text(page.replace("</body>", click), encoding="utf-8")
    seen = browsed(all_opened, tmp_path, "--dump-dom").stdout
    assert f'data-shown="{page.count("<tr ")}"' in seen
    filtered = tmp_path / "filtered.html"
    kind = "const f = document.querySelector('input'); f.value = 'GELU'; f.dispatchEvent(new Event('input'))"
    filtered.write_text(page.replace("</body>", f"<script>{kind}</script></body>"), encoding="utf-8")
    assert 'data-shown="3"' in browsed(filtered, tmp_path, "--dump-dom").stdout  # the model, its part, the GELU in it


@pytest.mark.skipif(BROWSER is None, reason="no chromium and no chrome is on the path")
def test_a_browser_draws_it(report, tmp_path):
    report.html(tmp_path / "report.html")
    picture = tmp_path / "page.png"
    browsed(tmp_path / "report.html", tmp_path, f"--screenshot={picture}", "--window-size=1200,900")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 40_000  # an empty page takes 5 kB

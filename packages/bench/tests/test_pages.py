"""``python -m bench report``: a page's tables are those of the results that it names."""

from pathlib import Path

import pytest
from rich.text import Text

from bench import pages
from bench.cli import main as cli
from bench.cli import records
from bench.cli.suites import RECORDS
from bench.errors import BenchError
from bench.results.machine import Machine
from bench.results.record import Record
from bench.results.tables import columns
from bench.suites.memory.systems.results import Cell
from bench.suites.search.results import Search, Trial

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abc", False, "python -m bench", "today")
PAGE = """# Numbers

Before.

<!-- table systems.json: an MLP -->
what was there
<!-- /table -->

After.
"""


@pytest.fixture
def folder(tmp_path):
    cells = [
        Cell("mlp", way, "an MLP, of 3 | 4 layers", peak, 0.0, [1.0], [1.0])
        for way, peak in (("plain", 2 << 20), ("L1", 1 << 20))
    ]
    records.save(Record("systems", MACHINE, {"device": "cpu", "seed": 0}, cells), tmp_path / "systems.json")
    return tmp_path


def test_a_table_takes_the_place_of_what_was_there(folder):
    made = pages.rendered(PAGE, folder).text
    assert made.startswith(
        "# Numbers\n\nBefore.\n\n<!-- table systems.json: an MLP -->\n| an MLP, of 3 \\| 4 layers | peak MiB |"
    )
    assert "| L1 | 1.0 | 50 | 1.00 | 0 | on the front |" in made
    assert "what was there" not in made
    assert "`python -m bench`; a processor, 2 threads, Linux; torch 2.15.0; commit 0123456789; today." in made
    assert made.endswith("<!-- /table -->\n\nAfter.\n")
    assert pages.rendered(made, folder).text == made


def test_the_command_checks_and_writes(folder, capsys):
    page = folder / "page.md"
    page.write_text(PAGE)
    command = ["report", str(page), "--results", str(folder)]
    assert cli.main([*command, "--check"]) == 1
    assert "run it without --check" in capsys.readouterr().err
    assert page.read_text() == PAGE
    assert cli.main(command) == 0
    assert cli.main([*command, "--check"]) == 0
    assert page.read_text() == pages.rendered(PAGE, folder).text


def test_what_is_wrong_with_a_page(folder, capsys):
    with pytest.raises(BenchError, match="has no table 'an LSTM'; it has 'an MLP, of 3"):
        pages.rendered(PAGE.replace("an MLP", "an LSTM"), folder)
    with pytest.raises(BenchError, match="cannot be read"):
        pages.rendered(PAGE.replace("systems.json", "other.json"), folder)
    with pytest.raises(BenchError, match="1 tables and charts begin"):
        pages.rendered(PAGE.replace("<!-- /table -->", ""), folder)
    assert cli.main(["report", str(folder / "missing.md")]) == 1
    page = folder / "page.md"
    page.write_text(PAGE.replace("an MLP", "an LSTM"))
    assert cli.main(["report", str(page), "--results", str(folder)]) == 1
    assert f"{page}: systems.json has no table 'an LSTM'" in capsys.readouterr().err


def test_a_name_of_several_tables(folder):
    """The first was taken."""
    what = ("BERT, 4 layers", "BERT, 4 layers, 2 heads", "BERT, 8 layers")
    cells = [Cell(f"model {place}", "plain", words, 1 << 20) for place, words in enumerate(what)]
    records.save(Record("systems", MACHINE, {"device": "cpu", "seed": 0}, cells), folder / "systems.json")
    with pytest.raises(BenchError, match=r"has 3 tables 'BERT'; it has .BERT, 4 layers., 'BERT"):
        pages.rendered(PAGE.replace("an MLP", "BERT"), folder)
    assert "| BERT, 4 layers | peak" in pages.rendered(PAGE.replace("an MLP", "BERT, 4 layers"), folder).text


def test_entries_say_of_which_commits_they_are():
    """Also those in lists of entries, of which the last run's commit was said; and that files differed was not."""
    trials = [Trial(value, commit=commit) for value, commit in ((1, "aaaaaaaaaa"), (2, "bbbbbbbbbb+"), (3, ""))]
    results = Record("search", MACHINE, {}, [Search("gcn-layers", "plain", trials=trials)])
    assert "; commits aaaaaaaaaa, bbbbbbbbbb+; " in pages.where(results)
    assert "; commit 0123456789; " in pages.where(Record("search", MACHINE))


def test_cells():
    table = columns("what", "of\nthis")
    table.add_row(Text("a group", style="bold"))
    table.add_row("one", Text.assemble("1.5", " ", Text("✓", style="green")))
    assert pages.to_markdown(table) == "| what | of this |\n| --- | ---: |\n| **a group** |  |\n| one | 1.5 ✓ |"


CHART = """<!-- chart systems.json: images/systems.png: Peaks against times: an MLP -->
<!-- /chart -->
"""


def test_a_chart_is_drawn_beside_the_page(folder, capsys):
    (folder / "images").mkdir()
    page = folder / "page.md"
    page.write_text(CHART)
    command = ["report", str(page), "--results", str(folder)]
    assert cli.main(command) == 0
    assert "![Peaks against times: an MLP](images/systems.png)\n<!-- /chart -->" in page.read_text()
    picture = folder / "images" / "systems.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli.main([*command, "--check"]) == 0
    picture.unlink()
    assert cli.main([*command, "--check"]) == 1
    assert "images/systems.png, which is not there" in capsys.readouterr().err


def test_a_mark_of_another_form(folder):
    with pytest.raises(BenchError, match="must have the form <!-- chart FILE: PLACE: WORDS -->"):
        pages.rendered("<!-- chart systems.json: a -->\n<!-- /chart -->", folder)
    with pytest.raises(BenchError, match="no table 'other' of a README"):
        pages.rendered("<!-- readme other -->\n<!-- /readme -->", folder)
    with pytest.raises(BenchError, match="1 tables and charts begin"):
        pages.rendered("<!-- chart systems.json: a -->\n<!-- /table -->", folder)


def test_every_page_is_that_of_the_records():
    root = Path(__file__).parents[3]
    written = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    texts = {page: page.read_text() for page in written if "_build" not in page.parts}
    marked = {page: text for page, text in texts.items() if "<!-- /" in text}
    assert len(marked) >= 14
    for page, text in marked.items():
        assert pages.rendered(text, root / "packages" / "bench" / "results").text == text, page


def test_every_kind_of_record_is_documented():
    text = (Path(__file__).parents[3] / "docs" / "benchmarks" / "files.md").read_text()
    assert {line.split()[2] for line in text.splitlines() if line.startswith("<!-- entries ")} == set(RECORDS)
    assert "| ways | peak_bytes | bytes | the most in forward and backward" in text
    with pytest.raises(BenchError, match="there is no kind of record 'other'; there are gnn, "):
        pages.rendered("<!-- entries other -->\n<!-- /entries -->", Path())

"""``python -m bench report``: recorded files as the Markdown pages that the documentation links to."""

import re
from pathlib import Path

import pytest
from rich.text import Text

from bench.cli import main, markdown, suites
from bench.cli.suites import RECORDS
from bench.results.machine import Machine
from bench.results.record import Record, save
from bench.results.tables import columns
from bench.suites.memory.systems.entries import Cell
from bench.suites.search.entries import Search, Trial

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abc", False, "python -m bench", "today")
ROOT = Path(__file__).parents[3]
DOCS, RESULTS = ROOT / "docs", ROOT / "packages" / "bench" / "results"
PAGES = DOCS / "results"
GENERATED = {f"{file.stem}.md" for file in RESULTS.glob("*.json")} | {markdown.FIELDS}


@pytest.fixture
def folder(tmp_path):
    """A folder with one recorded file."""
    cells = [
        Cell("mlp", way, "an MLP, of 3 | 4 layers", peak, 0.0, [1.0], [1.0])
        for way, peak in (("plain", 2 << 20), ("L1", 1 << 20))
    ]
    save(Record("systems", MACHINE, {"device": "cpu", "seed": 0}, cells, ["vit"]), tmp_path / "systems.json")
    return tmp_path


def test_a_page_has_the_run_then_each_table_then_the_notes(folder):
    page = markdown.render_record("systems.json", suites.load(folder / "systems.json"))
    assert page.startswith("# systems.json\n\n")
    run, table, notes = (
        page.index("`python -m bench`; a processor, 2 threads, Linux; torch 2.15.0; commit 0123456789; today."),
        page.index("\n## an MLP, of 3 \\| 4 layers\n\n| an MLP, of 3 \\| 4 layers | peak MiB |"),
        page.index("\n- Left out: vit."),
    )
    assert run < table < notes
    assert "| L1 | 1.0 | 50 | 1.00 | 0 | on the front |" in page


def test_the_command_checks_and_writes(folder, capsys):
    pages = folder / "pages"
    command = ["report", "--results", str(folder), "--pages", str(pages)]
    assert main.main([*command, "--check"]) == 1
    assert "is out of date in systems.md, fields.md; run the command without --check" in capsys.readouterr().err
    assert not pages.exists()
    assert main.main(command) == 0
    assert {page.name for page in pages.iterdir()} == {"systems.md", "fields.md"}
    assert main.main([*command, "--check"]) == 0
    (pages / "systems.md").write_text("another one")
    assert main.main([*command, "--check"]) == 1


def test_a_folder_without_recorded_files(tmp_path, capsys):
    assert main.main(["report", "--results", str(tmp_path)]) == 1
    assert f"--results must name a folder of recorded files, got {tmp_path}" in capsys.readouterr().err


def test_a_file_that_cannot_be_read(folder, capsys):
    (folder / "other.json").write_text("{}")
    assert main.main(["report", "--results", str(folder), "--pages", str(folder / "pages")]) == 1
    assert "other.json holds no results of `python -m bench ... --json`" in capsys.readouterr().err


def test_entries_say_of_which_commits_they_are():
    """Also those in lists of entries, of which the last run's commit was said; and that files differed was not."""
    trials = [Trial(value, commit=commit) for value, commit in ((1, "aaaaaaaaaa"), (2, "bbbbbbbbbb+"), (3, ""))]
    results = Record("search", MACHINE, {}, [Search("gcn-layers", "plain", trials=trials)])
    assert "; commits aaaaaaaaaa, bbbbbbbbbb+; " in markdown.describe_run(results)
    assert "; commit 0123456789; " in markdown.describe_run(Record("search", MACHINE))


def test_cells():
    table = columns("what", "of\nthis")
    table.add_row(Text("a group", style="bold"))
    table.add_row("one", Text.assemble("1.5", " ", Text("✓", style="green")))
    assert markdown.to_markdown(table) == "| what | of this |\n| --- | ---: |\n| **a group** |  |\n| one | 1.5 ✓ |"


def test_the_pages_of_the_documentation_are_those_of_the_recorded_files():
    pages = markdown.render_pages(sorted(RESULTS.glob("*.json")))
    assert len(pages) > 40
    assert set(pages) == GENERATED
    for name, text in pages.items():
        assert (PAGES / name).read_text(encoding="utf-8") == text, f"{name}: run python -m bench report"


def test_every_generated_page_belongs_to_a_recorded_file():
    """A page that `python -m bench report` wrote starts with the name of its file, or is that of the fields."""
    titles = {page.name: page.read_text("utf-8").splitlines()[0] for page in PAGES.glob("*.md")}
    assert {name for name, title in titles.items() if title.endswith(".json")} | {markdown.FIELDS} == GENERATED


def test_the_index_of_results_links_to_every_page():
    linked = set(re.findall(r"\]\(([\w-]+\.md)", (PAGES / "index.md").read_text("utf-8")))
    assert linked == {page.name for page in PAGES.glob("*.md")} - {"index.md"}


def test_links_of_the_documentation_name_tables_that_are_there():
    """Sphinx checks the same, where it is installed."""
    found = 0
    for page in (path for path in DOCS.rglob("*.md") if "_build" not in path.parts):
        for target, anchor in re.findall(r"\]\(([^)#:]*[\w-]+\.md)(?:#([^)]*))?\)", page.read_text("utf-8")):
            if (page.parent / target).resolve().parent != PAGES:
                continue
            text = (page.parent / target).read_text("utf-8")
            anchors = {_to_anchor(line[3:]) for line in text.splitlines() if line.startswith("## ")}
            assert not anchor or anchor in anchors, (page, target, anchor)
            found += 1
    assert found > 90


def _to_anchor(heading):
    """As GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace(" ", "-"))


def test_every_kind_of_record_has_its_fields():
    text = markdown.render_fields()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == list(RECORDS)
    assert "| ways | peak_bytes | bytes | the most in forward and backward" in text

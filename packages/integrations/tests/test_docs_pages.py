"""The pages of the documentation: their kinds, their length, their tables and their links."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
KINDS = {"how-to", "explanation", "reference"}
RESULTS = DOCS / "results"  # one page per record, mostly generated
READ = [DOCS / "index.md", DOCS / "start.md", *sorted(path for kind in KINDS for path in (DOCS / kind).glob("*.md"))]
ALL = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]
TWO_SCREENS, WORDS = 1_000, 45_000
ROWS, COLUMNS = 8, 6


def name(path):
    return path.relative_to(ROOT).as_posix()


def words(path):
    return len(path.read_text(encoding="utf-8").split())


def tables(page):
    """The lines of each table."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [block.strip().splitlines() for block in re.findall(r"(?:^\|.*\n)+", text + "\n", re.MULTILINE)]


def cells(line):
    return len(re.sub(r"\\\||`[^`]*`", "", line).strip().strip("|").split("|"))


def slug(heading):
    """A heading's anchor, as GitHub and MyST make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def links(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def test_each_page_is_of_a_kind():
    others = {path for path in DOCS.rglob("*.md") if RESULTS not in path.parents and "_build" not in path.parts}
    assert others == set(READ)


def test_the_index_lists_every_page():
    listed = set(
        re.findall(r"^(?:start|[\w-]+/[\w-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert listed == {name(path)[5:-3] for path in READ if path.name != "index.md"} | {"results/index"}


def test_the_length_of_all_pages():
    assert words(ROOT / "README.md") <= TWO_SCREENS
    assert sum(map(words, READ)) + words(ROOT / "README.md") <= WORDS


@pytest.mark.parametrize("page", READ, ids=name)
def test_tables(page):
    """Whoever reads a page from top to bottom meets one short table at most; reference pages are for looking up."""
    found = tables(page)
    assert all(cells(line) <= COLUMNS for table in found for line in table)
    if page.parent.name != "reference":
        assert len(found) <= 1
        assert all(len(table) - 2 <= ROWS for table in found)  # below the head and its line


@pytest.mark.parametrize("page", [path for path in ALL if path.name != "fields.md"], ids=name)
def test_links_lead_somewhere(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link

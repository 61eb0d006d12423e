"""The names that users type, with their arguments, stay: ``snapshots/public_api.txt`` has them.

The record has all public names of the modules below, and the names and members that a page named when it was renewed.
"""

import importlib
import inspect
import re
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path

import pytest
from torch import nn

from integrations.cli import main
from integrations.fewbit.cli import main as fewbit_main

from .libraries import library_or_skip
from .snapshots import FOLDER, assert_on_record, is_renewed

ROOT = Path(__file__).parents[3]
MODULES = (
    *("actcore", "actcore.stored"),
    *("integrations", "integrations.checkpoint", "integrations.losses", "integrations.report", "integrations.rules"),
    *("integrations.saved", "integrations.qmodules", "integrations.fewbit", "integrations.fewbit.functional"),
    *("integrations.fewbit.store", "integrations.fewbit.util"),
    "integrations.fewbit.variance",
)
# Modules that import a library, by the library.
OF_LIBRARIES = {
    "integrations.hf": "transformers",
    "integrations.lightning": "lightning",
    "integrations.pyg": "torch_geometric",
    "integrations.timm": "timm",
    "integrations.torchtitan": "torchtitan",
}
PAGES = (
    *("README.md", "packages/*/README.md"),
    *("docs/*.md", "docs/how-to/*.md", "docs/explanation/*.md", "docs/reference/*.md", "docs/tutorials/*.py"),
)
MADE = "(made by users)"  # among the members of a class whose arguments are on record
COMMANDS = ((main, ("", "fit", "report", "doctor")), (fewbit_main, ("", "fit", "quantize")))


# ---- how a name is written down ----


def default_text(value):
    """A default as text that is the same in each process."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if callable(value):
        return getattr(value, "__qualname__", type(value).__name__)
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text


def signature_text(function, skip=0):
    """The arguments of a function: names, kinds and defaults."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (TypeError, ValueError):  # a class of C
        return "(...)"
    parts, named_only = [], False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not named_only:
            parts.append("*")
        named_only |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f"={default_text(one.default)}"
        parts.append(stars + one.name + default)
    return f"({', '.join(parts)})"


def is_ours(owner):
    return owner.__module__.partition(".")[0] in ("actcore", "integrations")


def members(one, listed):
    """The lines for methods, properties and fields that our classes give to a class: those that a page names, or that
    are on record already."""
    found = {}
    for owner in reversed([base for base in one.__mro__ if is_ours(base)]):
        for name, value in vars(owner).items():
            if isinstance(value, (staticmethod, classmethod)):
                found[name] = signature_text(getattr(one, name))
            elif inspect.isfunction(value):
                found[name] = signature_text(value, skip=1)
            elif callable(getattr(value, "__get__", None)):
                found[name] = ""
    if is_dataclass(one):
        found |= {field.name: "" for field in fields(one)}
    return [
        f"    .{name}{arguments}"
        for name, arguments in sorted(found.items())
        if not name.startswith("_") and (name in listed or name in pages_have(r"[.`](\w+)"))
    ]


def described(name, known, recorded):
    """The lines for one name. A class or function that has a line already is named by that line.

    The arguments of a class are listed if it is a layer or a page has a call of it: users make no plan or report.
    """
    value = resolved(name)
    if value is None:
        return []
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return [f"{name}: {type(value).__name__.lstrip('_')}"]
    if value in known:
        return [f"{name} = {known[value]}"]
    known[value] = name
    if not inspect.isclass(value):
        return [name + signature_text(value)]
    listed = recorded.get(name, ())
    is_made = MADE in listed or issubclass(value, nn.Module) or value.__name__ in pages_have(r"(\w+)\(")
    return [f"class {name}{signature_text(value) if is_made else ''}", *members(value, listed)]


def public_names(module):
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, value in vars(found).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    ]
    return [f"{module}.{name}" for name in sorted(names)]


def resolved(name):
    """The object of a dotted name, or ``None`` if there is none."""
    module, *parts = name.split(".")
    found = importlib.import_module(module)
    for part in parts:
        module += f".{part}"
        if not hasattr(found, part) and inspect.ismodule(found):
            try:
                importlib.import_module(module)
            except ImportError:
                return None
        found = getattr(found, part, None)
    return found


def names_on_record(file):
    """The names in a file, each with the members of its class that are listed there."""
    found, path = {}, FOLDER / file
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        name = re.search(r"[\w.]+", line.removeprefix("class ")).group()
        if line.startswith("    ."):
            found[next(reversed(found))].append(name.removeprefix("."))
        else:
            found[name] = [MADE] if line.startswith("class ") and "(" in line else []
    return found


def assert_names_stay(file, modules, documented):
    """Compare a file with all that modules offer and that the file has already; a renewed one has what pages name."""
    recorded = names_on_record(file)
    names = [name for module in modules for name in public_names(module)]
    names += sorted({*recorded, *(documented if is_renewed() else ())} - {*names})
    known = {}
    if modules[0] != MODULES[0]:
        for name in public_names("integrations"):
            described(name, known, {})
    lines = [line for name in names for line in described(name, known, recorded)]
    assert_on_record(file, "\n".join(lines) + "\n")


# ---- what the pages name ----


def pages():
    """The text of each page, by its path."""
    paths = [path for pattern in PAGES for path in sorted(ROOT.glob(pattern))]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@cache
def pages_have(pattern):
    """All that a pattern finds in the pages, if the record is renewed: an edit of a page alone changes no record."""
    if not is_renewed():
        return frozenset()
    return {found for text in pages().values() for found in re.findall(pattern, text)}


def documented_names():
    """The dotted names in the README and docs, and those that their code imports, each with a page that names it."""
    found = {}
    for page, text in pages().items():
        imports = r"^\s*from ((?:actcore|integrations)[\w.]*) import ([\w, ]+)"
        for module, names in re.findall(imports, text, re.MULTILINE):
            found |= {f"{module}.{name.split(' as ')[0].strip()}": page for name in names.split(",")}
        for name in re.findall(r"(?<![\w./:])(?:actcore|integrations)(?:\.[A-Za-z]\w*)+", text):
            found[name] = page
    return {name: page for name, page in found.items() if "._" not in name.replace(".__", "")}


def test_each_name_of_the_pages_exists():
    missing = {name: page for name, page in documented_names().items() if resolved(name) is None}
    of_libraries = {name: page for name, page in missing.items() if name.startswith(tuple(OF_LIBRARIES))}
    assert missing == of_libraries  # these are checked below, where the library is there
    assert len(documented_names()) > 60


def test_the_public_names_and_their_arguments():
    documented = [name for name in documented_names() if not name.startswith(tuple(OF_LIBRARIES))]
    assert_names_stay("public_api.txt", MODULES, documented)


@pytest.mark.parametrize("module", OF_LIBRARIES)
def test_the_names_for_a_library(module):
    library_or_skip(OF_LIBRARIES[module])
    documented = [name for name in documented_names() if name.startswith(module + ".")]
    assert_names_stay(f"public_api_{module.rpartition('.')[2]}.txt", [module], documented)


def test_the_commands_and_their_options(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    lines = []
    for command, subcommands in COMMANDS:
        for subcommand in subcommands:
            with pytest.raises(SystemExit):
                command([*subcommand.split(), "--help"])
            told = capsys.readouterr().out
            name = told.split()[1:4] if told.startswith("usage:") else []
            options = sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", told)))
            lines.append(f"{' '.join(name)} {subcommand}: {' '.join(options)}")
    assert_on_record("commands.txt", "\n".join(lines) + "\n")

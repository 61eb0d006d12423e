"""The private names of torch stand in one file, torch has them, and one that it lacks is told of."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import integrations
from integrations._utils import torch_versions
from integrations._utils.torch_internals import NAMES
from integrations._utils.torch_names import NAMES as TABLE
from integrations._utils.torch_names import Missing, bound, later

ROOT = Path(integrations.__file__).parent
HERE = ROOT / "_utils" / "torch_internals.py"


@pytest.mark.parametrize("path", sorted(NAMES))
def test_torch_has_it(path):
    version = torch.__version__.partition("+")[0]
    if NAMES[path].spared and torch_versions.recorded().get(version, {}).get(path) == torch_versions.LACKS:
        pytest.skip(f"torch {version} does not have it, and nothing needs it")
    assert NAMES[path].is_there, NAMES[path].why


# ---- no other file uses a private name ----


def private_names(text):
    """The private names of torch that a file uses: it imports them, looks them up, or has them as a string."""
    tree = ast.parse(text)
    known = names_of_torch(tree)
    found = {path for node in ast.walk(tree) for path in paths_at(node, known)}
    return sorted(path for path in found if re.search(r"\._(?!_)", path))


def paths_at(node, known):
    match node:
        case ast.Import() | ast.ImportFrom():
            yield from imported(node).values()
        case ast.Attribute():
            yield resolved(node, known)
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[of, ast.Constant(value=name), *_]):
            yield f"{path}.{name}" if (path := resolved(of, known)) else ""
        case ast.Constant(value=str(text)) if re.fullmatch(r"torch(\.\w+)+", text):
            yield text


def imported(node):
    """What of torch the names stand for that a statement imports."""
    of = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    found = {name.asname or name.name: of + name.name for name in node.names}
    return {name: path for name, path in found.items() if re.match(r"torch\b", path)}


def names_of_torch(tree):
    """The same of a file: by its imports, and names that are assigned what they stand for and are nothing else."""
    nodes = list(ast.walk(tree))
    known = {"torch": "torch"}
    for node in nodes:
        known |= imported(node) if isinstance(node, ast.Import | ast.ImportFrom) else {}
    others = {node.arg for node in nodes if isinstance(node, ast.arg)}
    others |= {node.target.id for node in nodes if isinstance(node, ast.For) and isinstance(node.target, ast.Name)}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in others:
                if path := resolved(value, known):
                    known[name] = path
    return known


def resolved(node, known):
    """The path in torch of an expression such as ``nn.functional.relu``; empty of others."""
    match node:
        case ast.Name(id=name):
            return known.get(name, "")
        case ast.Attribute(value=value, attr=attribute) if path := resolved(value, known):
            return f"{path}.{attribute}"
    return ""


def test_no_other_file_uses_one():
    files = set(ROOT.rglob("*.py")) - {HERE}
    found = {str(path.relative_to(ROOT)): private_names(path.read_text(encoding="utf-8")) for path in files}
    assert {path: names for path, names in found.items() if names} == {}
    assert len(files) > 200
    assert len(private_names(HERE.read_text(encoding="utf-8"))) >= 70


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch._C.f()", "torch._C.f"),
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch import nn\nnn.Module._call_impl.__code__", "torch.nn.Module._call_impl"),
        ("def f():\n    from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("from torch.utils._pytree import tree_map as g", "torch.utils._pytree.tree_map"),
        ("import torch\naten = torch.ops.aten\naten._safe_softmax", "torch.ops.aten._safe_softmax"),
        ("from torch.utils import checkpoint as c\ngetattr(c, '_F', None)", "torch.utils.checkpoint._F"),
        ("import sys\nsys.modules['torch._dynamo']", "torch._dynamo"),
        ("from torch import Tensor\nTensor._backward_hooks", "torch.Tensor._backward_hooks"),
    ],
)
def test_a_private_name_is_seen(text, found):
    assert found in private_names(text)


def test_what_is_public_or_an_objects_own_is_not():
    text = "import torch\nfrom torch import Tensor\ndef f(x: Tensor):\n    torch.__version__, torch.cat, x._version"
    assert private_names(text) == []


def test_the_file_knows_of_all_that_it_binds():
    """What it imports for annotations is in the table, too."""
    [types] = [node for node in ast.parse(HERE.read_text(encoding="utf-8")).body if _is_for_types(node)]
    given = [path for node in types.body if isinstance(node, ast.ImportFrom) for path in imported(node).values()]
    assert set(given) <= NAMES.keys()
    assert TABLE is NAMES


def _is_for_types(node):
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


# ---- a name that torch lacks ----


@pytest.fixture
def gone(monkeypatch):
    """What stands for a name that torch lacks."""
    monkeypatch.setitem(NAMES, "torch._C._gone", None)
    return bound("torch._C._gone", "a plan")


TOLD = re.escape(f"a plan needs torch._C._gone, which torch {torch.__version__} does not have")


def test_it_is_in_the_table(gone):
    name = NAMES["torch._C._gone"]
    assert (name.path, name.feature, name.is_there, name.spared) == ("torch._C._gone", "a plan", False, False)
    assert isinstance(gone, Missing)


@pytest.mark.parametrize(
    "use",
    [
        lambda gone: gone(1, a=2),
        lambda gone: gone.attribute,
        lambda gone: getattr(gone, "_schema", None),
        lambda gone: isinstance(1, gone),
        lambda gone: isinstance(1, (str, gone)),
        lambda gone: issubclass(int, gone),
    ],
)
def test_to_use_it_raises(gone, use):
    with pytest.raises(RuntimeError, match=TOLD):
        use(gone)


def test_a_class_may_derive_from_it_and_is_not_made(gone):
    class Mode(gone):
        def __init__(self, argument):
            self.argument = argument

    with pytest.raises(RuntimeError, match=TOLD):
        Mode(1)


def test_who_does_without_is_given_what_it_takes_instead(monkeypatch):
    monkeypatch.setitem(NAMES, "torch._C._gone", None)
    assert bound("torch._C._gone", "a plan", None) is None
    assert later("torch._C._gone", "a plan", ())() == ()
    assert NAMES["torch._C._gone"].spared


@pytest.mark.parametrize(
    "path", ["torch._C._gone", "torch._gone.f", "torch.utils._gone.f", "torch.ops.aten._gone.default"]
)
def test_a_name_that_is_asked_for_later_is_an_import_that_fails(monkeypatch, path):
    monkeypatch.setitem(NAMES, path, None)
    get = later(path, "a plan")
    with pytest.raises(ImportError, match=re.escape(f"a plan needs {path}, which torch {torch.__version__} does not")):
        get()


def test_a_module_that_fails_to_import_says_so_itself(monkeypatch, tmp_path):
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "torch._made_up", raising=False)
    (tmp_path / "_made_up.py").write_text("import nowhere")
    monkeypatch.setitem(NAMES, "torch._made_up.f", None)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        later("torch._made_up.f", "a plan")()


# In a process of its own: names are bound once. Torch itself keeps what is gone for us.
_WITHOUT = """
import importlib.util, pkgutil, sys
spec = importlib.util.spec_from_file_location("integrations._utils.torch_names", sys.argv[1])
names = sys.modules["integrations._utils.torch_names"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(names)
get, kept, gone = names.Name.get, "torch.nn.Module._call_impl.__code__", sys.argv[2:]

def get_if_there(name):
    if name.path in gone or (not gone and name.path != kept):
        raise ImportError(name.why)
    return get(name)

names.Name.get = get_if_there
import torch
import integrations
"""


def run_without(script, *gone):
    """What a script prints in a process whose torch lacks these names; without any, all that a process can lack."""
    command = [sys.executable, "-c", _WITHOUT + script, str(ROOT / "_utils" / "torch_names.py"), *gone]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip().splitlines()


def test_every_file_can_be_imported_without_any():
    script = """
LIBRARIES = ("hf", "lightning", "pyg", "timm", "torchtitan")
for found in pkgutil.walk_packages(integrations.__path__, "integrations."):
    if not found.name.endswith("__main__") and found.name.rsplit(".")[-1] not in LIBRARIES:
        importlib.import_module(found.name)
print(sum(isinstance(value, names.Missing) for value in vars(integrations._utils.torch_internals).values()))
"""
    [missing] = run_without(script)
    assert int(missing) > 50


def test_other_features_work_without():
    script = """
model, x = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)), torch.randn(64, 64)
integrations.compress_model(model, level="L1")
model(x).sum().backward()
print(sum(row.stored_bytes for row in integrations.compression(model).report().rows))
integrations.restore_model(model)
try:
    integrations.plan(model, x, memory="1MiB")
except RuntimeError as error:
    print(error)
"""
    stored, error = run_without(script, "torch._C._is_any_autocast_enabled", "torch.ops.aten._safe_softmax.default")
    assert int(stored) > 0
    assert error.startswith("the capture of a training step needs torch._C._is_any_autocast_enabled, which torch ")

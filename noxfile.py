"""Every command a developer needs; `nox -l` lists them.

`nox -s tests` works on a fresh machine: it makes the environment, installs torch, builds the packages and runs.
`nox -R -s tests` starts at once with what is installed already. It sees edits to integrations, bench and tests;
after an edit to csrc or packages/core/src, leave the -R off.

ACTCORE_TORCH chooses the torch in pip's words, for example ACTCORE_TORCH="torch==2.13.*".
"""

import functools
import os
import re
import shlex
import shutil
import tarfile
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"  # for `requires=`
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint", "types"]

ROOT = Path(__file__).parent
GROUPS = functools.partial(nox.project.dependency_groups, nox.project.load_toml("pyproject.toml"))
CORE = nox.project.load_toml("packages/core/pyproject.toml")


@nox.session(tags=["setup"])
def environment(session: nox.Session) -> None:
    """Make the one environment that the sessions with torch share: with its CUDA libraries it takes 6 GB."""
    if torch := os.environ.get("ACTCORE_TORCH"):
        session.install(*shlex.split(torch), silent=False)
    session.install(*CORE["build-system"]["requires"], *GROUPS("build"), silent=False)
    # Without isolation the build uses this torch instead of downloading its own. Its output says which operators are
    # built and which are skipped.
    build = ["--no-build-isolation", "--no-deps", f"--config-settings=cmake.define.ACTCORE_WITH_CUDA={WITH_CUDA}"]
    session.install("--verbose", *build, "./packages/core", silent=False)
    session.install("-e", "./packages/integrations", "-e", "./packages/bench", *GROUPS("test", "types"))


# The CUDA operators are half of the build: where no GPU would run them, `nox -s cuda` compiles them.
WITH_CUDA = os.environ.get("ACTCORE_WITH_CUDA") or ("AUTO" if shutil.which("nvidia-smi") else "OFF")

# Nox cannot share an environment between sessions, so these have none: `environment` runs first, and they use its.
shared_session = functools.partial(nox.session, venv_backend="none", requires=["environment"])


def run_python(session: nox.Session, *args: str | Path, silent: bool = False, **env: str) -> str:
    """Run the environment's Python; ``silent`` returns what it printed."""
    python = ROOT / session.cache_dir.parent / "environment" / "bin" / "python"
    printed = session.run(str(python), *map(str, args), env=env, external=True, silent=silent)
    return printed if silent else ""


def also(session: nox.Session, *groups: str) -> None:
    """Have these dependency groups in the environment, too: a session brings what the others can do without."""
    pinned = []
    if "models" in groups:
        # torchvision, which timm needs, fits one torch alone: pinned, pip looks for the torchvision of this torch, and
        # does not exchange torch for that of the newest torchvision.
        ask = "import importlib.metadata as m; print(m.version('torch').partition('+')[0])"
        pinned = [f"torch=={run_python(session, '-c', ask, silent=True).strip()}"]
    python = str(ROOT / session.cache_dir.parent / "environment" / "bin" / "python")
    session.run_install(python, "-m", "pip", "install", "--quiet", *pinned, *GROUPS(*groups), external=True)
    # With -R nothing is installed; what is missing then would be skipped, and look well.
    names = [re.match(r"[\w-]+", one).group() for one in GROUPS(*groups)]  # type: ignore[union-attr]
    ask = f"import importlib.metadata as m\nfor n in {names!r}:\n    m.version(n)"
    try:
        run_python(session, "-c", ask, silent=True)
    except nox.command.CommandFailed:
        session.error(f"the environment lacks some of {', '.join(names)}: run this once without -R")


@shared_session(tags=["check"])
def tests(session: nox.Session) -> None:
    """Run every test of the three packages, a process for each core up to four. What follows `--` goes to pytest."""
    also(session, "models")
    if session.posargs:
        run_python(session, "-m", "pytest", *session.posargs)
        return
    processes = min(os.cpu_count() or 1, 4)  # each takes 2 GB, and some tests start processes of their own
    # worksteal: each process has neighbouring files, so that what a module shares is made once, and who is done first
    # takes half of what another one still has.
    runs = [["-n", str(processes), "--dist", "worksteal", "-m", "not undisturbed"]]
    # Of those, their files alone: to collect all tests again takes as long as these tests do.
    runs.append(["-m", "undisturbed", *marked_files("undisturbed")])
    # One thread each, also of what tests start, and no processes that inductor compiles in: more would wait for cores.
    # Tests that are about threads ask for theirs, and notebooks do. Those threads sleep while they wait: if they spin,
    # a notebook takes up to four times the CPU's time.
    one = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    one["PYTHONDONTWRITEBYTECODE"] = ""  # or each process that tests start compiles the packages' Python anew
    failed = []
    for arguments in runs:
        try:
            run_python(session, "-m", "pytest", *arguments, **one)
        except nox.command.CommandFailed:
            failed.append(" ".join(arguments))
    if failed:  # after both have run, so that one failure does not hide others
        session.error(f"tests failed: pytest {'; pytest '.join(failed)}")


def marked_files(marker: str) -> list[str]:
    """Return the files that have tests with a marker."""
    files = sorted(map(str, ROOT.glob("packages/*/tests/test_*.py")))
    return [file for file in files if f"pytest.mark.{marker}" in Path(file).read_text("utf-8")]


LONG = {
    "faults": ("Put a fault in every place of a training step, and not only in some", "*/tests/test_faults_*.py"),
    "long_runs": (
        "Train 20,000 steps in every way and watch what grows, threads and processes too: half an hour",
        "integrations/tests/test_long_runs*.py",
        "integrations/tests/test_threads.py",
        "integrations/tests/test_call_follower.py",
        "integrations/tests/test_errors_in_training.py",
        "integrations/tests/test_fewbit_codebook.py",
        "integrations/tests/test_first_steps_peaks.py",
        "integrations/tests/test_plan_placed.py",
        "integrations/tests/test_pickled_at_any_moment.py",
        "integrations/tests/test_tensor_parallel.py",
        "integrations/tests/test_trainers_fsdp.py",
    ),
    "fuzz": ("Damage what is read from outside, 100,000 times in all", "*/tests/test_fuzz*.py"),
    "versions": ("Hide each of torch's private names in turn", "integrations/tests/test_torch_names*.py"),
    "inductor": (
        "Compare gradients under inductor with eager ones, for 24 models, in four ways, and every view: two hours",
        "integrations/tests/test_inductor*.py",
        "integrations/tests/test_compiled_timm.py",
        "integrations/tests/test_joint*.py",
        "integrations/tests/test_fus*.py",
        "integrations/tests/test_scheduling.py",
        "core/tests/test_compile*.py",
    ),
    "widths": (
        "Bound the gradient's error up to hidden size 8192; takes 8 GiB",
        "integrations/tests/test_sweep_widths.py",
    ),
}
"""Tests of which `nox -s tests` tries some cases; by session: what the long form does, and its files."""


def long_form(name: str, what: str, *patterns: str) -> None:
    """Make the session of a long form."""

    def run(session: nox.Session) -> None:
        files = sorted(str(file) for pattern in patterns for file in ROOT.glob(f"packages/{pattern}"))
        many = {"ACTCORE_LONG": "1", "ACTCORE_FUZZ_EXAMPLES": os.environ.get("ACTCORE_FUZZ_EXAMPLES", "2000")}
        run_python(session, "-m", "pytest", *(session.posargs or files), OMP_NUM_THREADS="1", **many)

    run.__doc__ = f"{what}. What follows `--` goes to pytest."
    shared_session(run, name=name, tags=["reliability"])


for name, texts in LONG.items():
    long_form(name, *texts)


@shared_session(tags=["reliability"])
def peers(session: nox.Session) -> None:
    """Take a step of all of PyG's layers and timm's families, and capture sixty models of four libraries; with
    `-- LIBRARY`, or a folder, run its own tests plainly and compressed, by `peers_run.py`'s options."""
    also(session, "models")
    if not session.posargs:
        tests = ROOT / "packages/integrations/tests"
        files = sorted(map(str, (*tests.glob("test_peers*.py"), tests / "test_capture_models.py")))
        run_python(session, "-m", "pytest", *files, ACTCORE_LONG="1", OMP_NUM_THREADS="1")
        return
    name, *options = session.posargs
    with tempfile.TemporaryDirectory() as unpacked:
        folder = Path(name) if Path(name).is_dir() else source_of(session, name, Path(unpacked))
        run_python(session, "packages/integrations/tests/peers/peers_run.py", folder, *options)


def source_of(session: nox.Session, name: str, to: Path) -> Path:
    """The folder of an installed library's source distribution, which has its tests, unpacked."""
    ask = f"import importlib.metadata as m; print(m.version({name!r}))"
    version = run_python(session, "-c", ask, silent=True).strip()
    download = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", to]
    run_python(session, *download, f"{name}=={version}")
    [archive] = to.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(to, filter="data")
    [folder] = (path for path in to.iterdir() if path.is_dir())
    if not any(folder.rglob("test_*.py")):
        session.skip(f"the source distribution of {name} {version} has no tests: give the folder of a checkout")
    return folder


@shared_session(tags=["check"])
def sanitize(session: nox.Session) -> None:
    """Feed damaged stored forms to the kernels under AddressSanitizer (GCC). What follows `--` goes to pytest."""
    compiler = os.environ.get("CXX", "g++")
    runtimes = []
    for name in ("libasan.so", "libubsan.so"):
        found = session.run(compiler, f"-print-file-name={name}", silent=True, external=True)
        if not Path(found.strip()).is_absolute():
            session.error(f"{compiler} has no {name}: install GCC's sanitizers, or name a GCC that has them with CXX")
        runtimes.append(str(Path(found.strip()).resolve()))

    with tempfile.TemporaryDirectory() as site:
        settings = {
            "build-dir": "build/sanitize",
            "cmake.build-type": "Debug",  # keeps the symbols that a report names
            "cmake.define.ACTCORE_SANITIZE": "ON",
            "cmake.define.ACTCORE_WITH_CUDA": "OFF",
            "cmake.define.CMAKE_CXX_COMPILER": compiler,
        }
        chosen = [f"--config-settings={name}={value}" for name, value in settings.items()]
        install = ["-m", "pip", "install", "--quiet", "--no-build-isolation", "--no-deps", "--target", site]
        run_python(session, *install, *chosen, "./packages/core")
        environment = {
            "PYTHONPATH": site,  # comes before the environment's own actcore
            # Python is not built with them, so they come first by force.
            "LD_PRELOAD": ":".join(runtimes),
            # Python keeps memory until it ends; what cannot be allocated must raise, not end the process.
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "ACTCORE_FUZZ_EXAMPLES": os.environ.get("ACTCORE_FUZZ_EXAMPLES", "2000"),
        }
        names = (
            "fuzz",
            "fuzz_files",
            "fuzz_solvers",
            "damaged",
            "direct_kernels",
            "operators",
            "bits",
            "masks",
            "allocation",
            "allocation_errors",
            "steps",
        )
        tests = [f"packages/core/tests/test_{name}.py" for name in names]
        ask = "import actcore; print(*actcore.build_info()['runnable_cpu_kernels'])"
        for kernels in run_python(session, "-c", ask, silent=True, **environment).split():
            session.log(f"{kernels} kernels")
            # --capture=sys: the report that a sanitizer writes as it ends the process stays visible.
            pytest = ["-m", "pytest", "--capture=sys", *(session.posargs or tests)]
            run_python(session, *pytest, ACTCORE_CPU=kernels, **environment)


@nox.session(tags=["check"])
def lint(session: nox.Session) -> None:
    """Run the pre-commit hooks (ruff, clang-format, typos) on every tracked file; they mend what they can."""
    session.install(*GROUPS("lint"))
    session.run("pre-commit", "run", "--all-files", "--show-diff-on-failure", *session.posargs)


@shared_session(tags=["check"])
def types(session: nox.Session) -> None:
    """Check the three packages with mypy --strict."""
    run_python(session, "-m", "mypy", *session.posargs)


@shared_session(tags=["check"])
def cuda(session: nox.Session) -> None:
    """Compile the CUDA operators, for one architecture if no GPU is there; if one is, run the tests that take it."""
    if shutil.which("nvcc") is None:
        session.skip("there is no nvcc")
    gpu = shutil.which("nvidia-smi") is not None
    chosen = ["cmake.define.ACTCORE_WITH_CUDA=ON"]
    if not gpu:
        # The library of the CUDA operators alone: `environment` has compiled all else. What the oldest architecture
        # compiles, later ones do, too; each takes as long again. With a GPU the tests need the whole package, which is
        # built in the folder of `environment`, so that only what that left out is compiled.
        chosen += ["build-dir=build/cuda", "build.targets=ops_cuda", "install.components=ops_cuda"]
        chosen.append("cmake.define.CMAKE_CUDA_ARCHITECTURES=80-real")
    with tempfile.TemporaryDirectory() as site:
        install = ["-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", site]
        run_python(session, *install, *(f"--config-settings={one}" for one in chosen), "./packages/core")
        if not list(Path(site, "actcore").glob("_ops_cuda*")):
            session.error("the CUDA operators were left out")
        if gpu:
            run_python(
                session, "-m", "pytest", "-m", "cuda", *(session.posargs or marked_files("cuda")), PYTHONPATH=site
            )


@shared_session(tags=["release"])
def docs(session: nox.Session) -> None:
    """Build the documentation into docs/_build; a warning is an error."""
    also(session, "docs", "models")
    run_python(session, "-m", "sphinx", "--fail-on-warning", "--keep-going", "docs", "docs/_build")


@shared_session(tags=["release"])
def wheel(session: nox.Session) -> None:
    """Build actcore's sdist into dist/, from it alone the wheel, and run that wheel's self-check."""
    also(session, "wheel")
    shutil.rmtree("dist", ignore_errors=True)
    run_python(session, "-m", "build", "--no-isolation", "--outdir", "dist", "packages/core")
    [sdist] = Path("dist").glob("*.tar.gz")
    [wheel] = Path("dist").resolve().glob("*.whl")

    with tarfile.open(sdist) as archive:
        carried = {name.partition("/")[2] for name in archive.getnames()}
    sources = {path.as_posix() for path in Path("csrc").rglob("*") if path.is_file()}
    if missing := sources - carried:  # a wheel for CPU builds without the .cu files, so look for each of them
        session.error(f"{sdist} lacks {', '.join(sorted(missing))}")

    with tempfile.TemporaryDirectory() as empty, session.chdir(empty):
        run_python(session, "-m", "pip", "install", "--quiet", "--no-deps", "--target", "site", wheel)
        run_python(session, "-m", "actcore", PYTHONPATH="site")  # comes before the environment's own actcore


BENCHES = {
    "gnn": "Train GNNs with compressed activations",
    "kernels": "Time codecs and operators beside copies",
    "sensitivity": "See how well adaptive levels know which tensors matter",
    "activations": "Measure models of any kind under compression",
    "vision": "Measure networks for images, compressed",
    "fewbit": "Measure few-bit activations and randomized linear layers",
    "checkpoint": "Measure planned recomputation",
    "systems": "Measure memory against time, every way to train",
    "search": "Search the largest models within a given memory",
    "text": "Train BERT on GLUE's tasks in every way",
    "llm": "Train language models in every way, the loss in chunks among them",
    "curves": "Train four tasks plainly and compressed, and compare loss and accuracy",
}


WITHOUT_MODELS = ("gnn", "kernels", "sensitivity")
"""Benchmarks that take no model of timm, transformers or the like."""


def bench(name: str, what: str) -> None:
    """Make the session of a benchmark."""

    def run(session: nox.Session) -> None:
        if name not in WITHOUT_MODELS:
            also(session, "models")
        run_python(session, "-m", "bench", name, *session.posargs)

    run.__doc__ = f"{what}. What follows `--` goes to `python -m bench {name}`."
    shared_session(run, name=f"bench_{name}", tags=["bench"])


for entry in BENCHES.items():
    bench(*entry)


RECORDED = {
    "sweep": (
        "Take a compressed step of many models and layers",
        ("packages/integrations/tests/test_sweep.py", "-k", "compressed_step"),
        ("mobilenetv3_small_050", "distilbert", "GATConv"),
    ),
    "operators": (
        "Run torch's own database of operators under compression",
        ("packages/integrations/tests/test_operator_database.py", "-k", "every_operator_has"),
        ("sigmoid", "sort", "log", "linalg.eigh"),
    ),
}
"""Tests that record what they measure; by name: what they do, pytest's arguments, and subjects of a quick run."""


def record(session: nox.Session, name: str, file: Path, *options: str) -> None:
    """Run the tests of a name with all their subjects, which ``options`` may restrict, and print what they found."""
    _, tests, _ = RECORDED[name]
    run_python(session, "-m", "pytest", *tests, "--record", file, *options, OMP_NUM_THREADS="1")
    run_python(session, "-m", "bench", "show", file)


def recorded(name: str, what: str) -> None:
    """Make the session of tests that record."""

    def run(session: nox.Session) -> None:
        also(session, "models")
        options = list(session.posargs)
        if "--record" in options:
            place = options.index("--record")
            _, file = options[place : place + 2]
            record(session, name, Path(file), *options[:place], *options[place + 2 :])
            return
        file = Path("bench-results", f"{name}.json")
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)  # it would be taken up
        record(session, name, file, *options)

    run.__doc__ = f"{what}. What follows `--` goes to pytest: `--record FILE`, `--subject NAME`, `--level`, `--device`."
    shared_session(run, name=f"bench_{name}", tags=["bench"])


for name, (what, *_) in RECORDED.items():
    recorded(name, what)


@shared_session(tags=["bench"])
def bench_quick(session: nox.Session) -> None:
    """Run every benchmark for a few minutes, to see that it works; results go to bench-results/quick/."""
    folder = Path("bench-results", "quick")
    shutil.rmtree(folder, ignore_errors=True)  # what is there would be taken up, and nothing would be seen to work
    folder.mkdir(parents=True)
    also(session, "models")
    for name in BENCHES:
        run_python(session, "-m", "bench", name, "--quick", "--json", folder / f"{name}.json", *session.posargs)
    compiled = "systems", "--compile", "--quick", "--json", folder / "systems-compiled.json"
    run_python(session, "-m", "bench", *compiled, *session.posargs)
    for name, (_, _, quick) in RECORDED.items():
        subjects = [part for subject in quick for part in ("--subject", subject)]
        record(session, name, folder / f"{name}.json", *subjects)

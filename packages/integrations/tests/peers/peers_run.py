"""Runs a library's own tests plainly, and those that passed and train a model once more in each way of compressing.

    python packages/integrations/tests/peers/peers_run.py FOLDER [--ways L0 L1.1 ...] [-- pytest's arguments]

What fails with us is run again, plainly and in that way: a test that fails plainly now, or passes now, is of those that
do not tell (random draws, times), and is counted apart.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from peers_hook import EXACT, WAYS

HERE = Path(__file__).parent


class Run:
    """One pytest over a folder, in one way.

    Attributes:
        outcomes: by test, ``"passed"``, ``"failed"``, ``"skipped"`` or ``"died"``.
        lines: by test, why it failed and where.
        counts: by test, forwards and bytes.
    """

    def __init__(self, folder, way, out, pytest_arguments, only=None, seconds=120, limit=None):
        self.outcomes, self.lines, self.counts = {}, {}, {}
        remaining = only
        for _ in range(10):  # a process that dies takes one test with it, and the others go on
            file = Path(out, f"{way}-{len(list(Path(out).iterdir()))}.jsonl")
            self._run(folder, way, file, pytest_arguments, remaining, seconds, limit)
            died = self._read(file)
            if died is None or only is None:  # of a plain run, what was not reached is not known by name
                return
            remaining = [name for name in only if name not in self.outcomes]
            if not remaining:
                return

    def _run(self, folder, way, file, pytest_arguments, only, seconds, limit):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "peers_plugin", "-p", "no:cacheprovider"]
        command += ["-o", "addopts=", "--tb=short", "--continue-on-collection-errors"]
        # With a space before it, pytest takes a file that an option of a plugin names for a test's, and its folder for
        # the root that names of tests are relative to.
        command += [f"--rootdir={folder}", f"--peers-way={way}", f"--peers-json={file}", f"--peers-seconds={seconds}"]
        if only is not None:
            names = file.with_suffix(".names")
            names.write_text("\n".join(only), "utf-8")
            command += [f"--peers-only={names}"]
        path = os.pathsep.join(filter(None, [str(HERE), str(folder), os.environ.get("PYTHONPATH")]))
        log = file.with_suffix(".log").open("w")
        process = subprocess.Popen(
            [*command, *pytest_arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        file.touch()

    def _read(self, file):
        began = None
        for line in map(json.loads, file.read_text("utf-8").splitlines()):
            if name := line.get("began"):
                began = name
            elif line["when"] == "end":
                self.counts[line["test"]] = line
                began = None
            elif self.outcomes.get(line["test"]) != "failed":
                self.outcomes[line["test"]] = line["outcome"]
                self.lines[line["test"]] = line
        if began is not None:
            self.outcomes[began] = "died"
            self.lines[began] = {"why": "the process ended, or its time was over", "trace": ""}
        return began

    def of(self, *outcomes):
        """The tests with one of these outcomes."""
        return [name for name, outcome in self.outcomes.items() if outcome in outcomes]

    def total(self, key):
        """The sum of a count."""
        return sum(line[key] for line in self.counts.values())


def compare(folder, ways, out, pytest_arguments, seconds, limit):
    """The plain run and the others: a dictionary for JSON."""
    plain = Run(folder, "plain", out, pytest_arguments, None, seconds, limit)
    passed = plain.of("passed")
    train = [name for name in passed if plain.counts.get(name, {}).get("forwards", 0)]
    found = {
        "run": len(plain.outcomes) - len(plain.of("skipped")),
        "passed plainly": len(passed),
        "train a model": len(train),
        "ways": {},
    }
    for way in ways:
        found["ways"][way] = _one_way(folder, way, train, out, pytest_arguments, seconds, limit) if train else {}
    return found


def _one_way(folder, way, train, out, pytest_arguments, seconds, limit):
    ours = Run(folder, way, out, pytest_arguments, train, seconds, limit)
    suspects = ours.of("failed", "died")
    untold = []
    if suspects:
        again = Run(folder, way, out, pytest_arguments, suspects, seconds, limit)
        plain = Run(folder, "plain", out, pytest_arguments, suspects, seconds, limit)
        untold = [name for name in suspects if plain.outcomes.get(name) != "passed" or name in again.of("passed")]
    failed = {name: ours.lines[name] for name in suspects if name not in untold}
    return {
        "run": len(ours.outcomes),
        "passed": len(ours.of("passed")),
        "failed": {name: {"why": line["why"], "trace": line.get("trace", "")} for name, line in failed.items()},
        "do not tell": untold,
        "forwards": ours.total("forwards"),
        "original bytes": ours.total("original_bytes"),
        "stored bytes": ours.total("stored_bytes"),
    }


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the library's source, where its tests are run")
    parser.add_argument("--ways", nargs="+", choices=[way for way in WAYS if way != "plain"], default=list(WAYS)[1:])
    parser.add_argument("--json", type=Path, help="the file for what was found")
    parser.add_argument("--out", type=Path, help="the folder for the runs' logs")
    parser.add_argument("--seconds", type=int, default=120, help="that one test may take")
    parser.add_argument("--limit", type=int, help="the seconds that one run of all may take")
    own, rest = sys.argv[1:], []
    if "--" in own:
        own, rest = own[: own.index("--")], own[own.index("--") + 1 :]
    options = parser.parse_args(own)
    out = options.out or Path(tempfile.mkdtemp(prefix="peers-"))
    out.mkdir(parents=True, exist_ok=True)
    found = compare(options.folder.resolve(), options.ways, out.resolve(), rest, options.seconds, options.limit)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(
        f"{found['run']} run, {found['passed plainly']} passed plainly, {found['train a model']} of these train a model"
    )
    for way, one in found["ways"].items():
        print(f"{way}: {one}" if not one else _in_words(way, one))
    return int(any(one.get("failed") for way, one in found["ways"].items() if way in EXACT))


def _in_words(way, one):
    lines = [
        f"{way}: {one['passed']} of {one['run']} passed, {len(one['failed'])} failed with us, "
        f"{len(one['do not tell'])} do not tell; {one['forwards']} forwards, "
        f"{one['original bytes']} bytes stored in {one['stored bytes']}"
    ]
    return "\n".join(lines + [f"  {name}: {line['why'][:200]!r}" for name, line in one["failed"].items()])


if __name__ == "__main__":
    sys.exit(main())

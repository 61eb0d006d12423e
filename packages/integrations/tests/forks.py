"""Scripts in processes of their own that do not import torch again: they are forks of a process that has.

To import torch, its compiler, FSDP, transformers and this project takes some nine seconds, which each rank of each test
would spend.
A fork has run nothing before its script. What has to be set before a process starts, such as the allocator's settings,
takes a process that is started anew.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


class Fork:
    """A script that runs as ``__main__`` in a fork.

    Args:
        script: its path.
        arguments: ``sys.argv`` beside the script.
        cwd: the folder that it runs in; this process's unless given.
        environment: what is set in ``os.environ``.

    Attributes:
        returncode: as ``subprocess.Popen`` has it, ``None`` while it was not waited for.
    """

    def __init__(self, script: Path, *arguments: str, cwd: Path | None = None, **environment: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._written = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        request = {"script": str(script), "arguments": arguments, "cwd": str(cwd or Path.cwd())}
        outputs = [str(path) for path in self._written]
        self._process = _ask({**request, "environment": environment, "outputs": outputs}, None)
        self.returncode: int | None = None

    def communicate(self, timeout: float) -> tuple[str, str]:
        """What it has written to stdout and to stderr when it ends; it may be asked once.

        Raises:
            subprocess.TimeoutExpired: it takes longer, in seconds, and was killed; with what it has written.
        """
        self.returncode = _ask({"wait": self._process}, timeout)
        in_time = self.returncode is not None
        if not in_time:
            os.kill(self._process, signal.SIGKILL)
            self.returncode = _answer(None)
        out, errors = (path.read_text("utf-8", errors="replace") for path in self._written)
        self._folder.cleanup()
        if not in_time:
            raise subprocess.TimeoutExpired(f"process {self._process}", timeout, out, errors)
        return out, errors

    def kill(self) -> None:
        """Ends it, if nobody has waited for its end."""
        if self.returncode is None:
            os.kill(self._process, signal.SIGKILL)
            self.returncode = _ask({"wait": self._process}, None)
            self._folder.cleanup()


@functools.cache
def _server() -> subprocess.Popen:
    """The process that forks, one for each process that runs tests."""
    command = [sys.executable, __file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    atexit.register(lambda: (server.kill(), server.wait()))
    return server


def _ask(request: dict, timeout: float | None) -> int | None:
    print(json.dumps(request), file=_server().stdin, flush=True)
    return _answer(timeout)


def _answer(timeout: float | None) -> int | None:
    """The next answer; ``None`` where it takes longer, in seconds."""
    answers = _server().stdout
    if timeout is not None and not select.select([answers], [], [], timeout)[0]:
        return None
    return json.loads(answers.readline())


def _serve() -> None:
    """Reads requests, a line of JSON each: a script to run, whose process is the answer, or one to wait for."""
    import torch._dynamo

    import integrations  # noqa: F401 - what scripts import

    if torch.distributed.is_available():
        import torch.distributed.fsdp
    with contextlib.suppress(ImportError):
        from transformers import LlamaForCausalLM  # noqa: F401 - imported on demand
    gc.collect()
    gc.freeze()  # so that collections in forks leave out, and do not copy, what was imported here

    for line in sys.stdin:
        request = json.loads(line)
        if "wait" in request:
            print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        elif process := os.fork():
            print(process, flush=True)
        else:
            os._exit(_run(**request))


def _run(script: str, arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[str]) -> int:
    """Runs a script in this process, and returns the code to end with."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.chdir(cwd)
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as ended:
        return ended.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    _serve()

import pytest
import torch

from .emulation import Emulation, build


@pytest.fixture(autouse=True)
def set_threads():
    """Each test runs on one thread, unless it asks this for more.

    Small tensors gain nothing from threads, and on a busy machine threads that wait for each other made the
    statistics ten times slower.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch.set_num_threads
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def kernels(tmp_path_factory) -> Emulation:
    """The CUDA kernels on the host."""
    return build(tmp_path_factory.mktemp("cuda_on_host"))

"""CUDA's streams, events and caching allocator without a GPU, for code that copies beside the computation.

Tensors of the CPU are taken for a device's. The host is ahead of the device by everything: no event is ever seen to
have happened, and an order is known only where a stream waits for it. The allocator is torch's as far as order goes: a
block belongs to the stream that was current when it was made, goes back to that stream's pool when its tensor goes, and
is given out again there, unless ``record_stream`` has named another stream.
"""

import contextlib
import weakref

import torch


class Event:
    def __init__(self, known, captured):
        self.known, self.captured = known, captured


class Stream:
    """What has been enqueued, and all that is known to have happened before what comes next."""

    def __init__(self, cuda):
        self.cuda, self.known = cuda, set()

    def record_event(self):
        return Event(set(self.known), self.cuda.capturing)

    def wait_event(self, event):
        assert event.captured == self.cuda.capturing, "waits across the border of a capture"
        self.known |= event.known

    def wait_stream(self, other):
        self.wait_event(other.record_event())


class Block:
    def __init__(self, stream, nbytes):
        self.stream, self.nbytes = stream, nbytes
        self.uses, self.writes, self.recorded = set(), set(), False


class FakeCuda:
    """The device. ``reserved`` counts the bytes that the allocator has taken, as ``memory_reserved`` does."""

    def __init__(self):
        self.reserved = 0
        self.capturing = False
        self.current = Stream(self)
        self._free: dict[Stream, list[Block]] = {}
        self._blocks: weakref.WeakKeyDictionary[torch.UntypedStorage, Block] = weakref.WeakKeyDictionary()
        self._operations = 0

    def new(self, tensor):
        """The tensor, as one that was made on the current stream."""
        pool = self._free.setdefault(self.current, [])
        block = next((block for block in pool if block.nbytes == tensor.nbytes), None)
        if block is None:
            block = Block(self.current, tensor.nbytes)
            self.reserved += block.nbytes
        else:
            pool.remove(block)
        storage = tensor.untyped_storage()
        self._blocks[storage] = block
        weakref.finalize(storage, self._release, block).atexit = False
        return tensor

    def _release(self, block):
        if not block.recorded:
            self._free[block.stream].append(block)

    def run(self, *, read=(), write=()):
        """An operation on the current stream, which must come after those that it could disturb, or they it."""
        self._operations += 1
        for tensors, own in ((read, False), (write, True)):
            for block in filter(None, (self._blocks.get(tensor.untyped_storage()) for tensor in tensors)):
                before = block.uses if own else block.writes
                assert before <= self.current.known, "a stream uses memory that another may still be using"
                block.uses.add(self._operations)
                if own:
                    block.writes.add(self._operations)
        self.current.known.add(self._operations)

    def record_stream(self, tensor, stream):
        self._blocks[tensor.untyped_storage()].recorded = True

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def capture(self):
        """A CUDA graph, which must have come together again in the stream that it began on."""
        self.capturing = True
        begun = self._operations
        yield
        self.capturing = False
        assert set(range(begun + 1, self._operations + 1)) <= self.current.known, "the capture ends unjoined"


def install(monkeypatch) -> FakeCuda:
    """Lets torch and its tensors tell the fake what they do."""
    cuda = FakeCuda()
    clone, copy, empty_like = torch.Tensor.clone, torch.Tensor.copy_, torch.empty_like

    def noted_clone(tensor):
        cloned = cuda.new(clone(tensor))
        cuda.run(read=[tensor], write=[cloned])
        return cloned

    def noted_copy(to, tensor, non_blocking=False):
        cuda.run(read=[tensor], write=[to])
        return copy(to, tensor)

    def noted_empty_like(tensor, *, device=None, pin_memory=False):
        made = empty_like(tensor)
        return made if pin_memory else cuda.new(made)

    monkeypatch.setattr(torch.Tensor, "clone", noted_clone)
    monkeypatch.setattr(torch.Tensor, "copy_", noted_copy)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: cuda.record_stream(tensor, stream))
    monkeypatch.setattr(torch, "empty_like", noted_empty_like)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(cuda))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: cuda.current)
    monkeypatch.setattr(torch.cuda, "stream", cuda.stream)
    return cuda

"""Saved ``Compressed`` of damaged bytes: ``torch.load`` refuses the file, or what it returns is refused or reads.

What a damaged file raises in ``torch.load`` is torch's. What comes out of it is ours: never anything but a tensor or a
``ValueError``. ``nox -s sanitize`` runs this with kernels built for AddressSanitizer; see ``test_fuzz.py``.
"""

import io
import pickle
import warnings
import zipfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import actcore
from actcore import Compressed, Layout

from .damage import THINGS, SaysSound, stored
from .samples import normal
from .test_fuzz import DAMAGED, NO_MEMORY, fuzz, read, result_of


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def loaded(content):
    """What ``torch.load`` returns, or the error that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a file whose entries are named as TorchScript's are
        try:
            return torch.load(io.BytesIO(content), weights_only=True)
        except Exception as error:  # torch promises no kind of error
            return error


def assert_refused_or_read(found):
    """What a file held raises what ``decompress`` says, or decompresses."""
    if not isinstance(found, Compressed):
        return
    y = result_of(actcore.decompress, found)
    if isinstance(y, Exception):
        assert (isinstance(y, ValueError) and DAMAGED in str(y)) or NO_MEMORY.search(str(y)), repr(y)
    else:
        read(y)


@st.composite
def changed(draw, content, most=4):
    """Bytes of which some are others, gone, or added."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, most))):
        place = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "flip", "set", "insert", "drop", "cut"]))
        if kind == "flip" and place < len(content):
            content[place] ^= draw(st.integers(1, 255))
        elif kind == "set":
            content[place : place + 4] = draw(st.sampled_from([b"\xff" * 4, bytes(4), b"\x00\x00\x00\x7f"]))
        elif kind == "insert":
            content[place:place] = draw(st.binary(min_size=1, max_size=6))
        elif kind == "drop":
            del content[place : place + draw(st.integers(1, 6))]
        elif kind == "cut" and draw(st.booleans()):
            del content[place:]
    return bytes(content)


def rezipped(content, change):
    """A file with other contents of one entry, whose sums are right again: so that damage reaches what reads it."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, change(entry.filename, old.read(entry)))
    return file.getvalue()


@fuzz
@given(st.data())
def test_a_file_with_damaged_bytes(data):
    content = saved(data.draw(stored()))
    assert_refused_or_read(loaded(data.draw(changed(content))))


@fuzz
@given(st.data())
def test_a_file_whose_pickle_is_damaged(data):
    content = saved(data.draw(stored()))

    def change(name, entry):
        return data.draw(changed(entry, 2)) if name.endswith("data.pkl") else entry

    assert_refused_or_read(loaded(rezipped(content, change)))


@fuzz
@given(st.data())
def test_a_file_whose_tensors_are_damaged(data):
    content = saved(data.draw(stored()))

    def change(name, entry):
        return data.draw(changed(entry, 2)) if "/data/" in name and entry else entry

    assert_refused_or_read(loaded(rezipped(content, change)))


FIELDS = ("codec", "payload", "layout", "dtype")


@st.composite
def of_any_fields(draw):
    """A ``Compressed`` as a file may fill it: each field left out, or of any kind, and its codec's the same."""
    c = draw(stored())
    state = {name: getattr(c, name) for name in FIELDS}
    things = st.one_of(
        THINGS, st.sampled_from([torch.float32, Layout((4,), (1,)), Layout(None, 4), normal(4), {}, [], c.codec, str])
    )
    for name in draw(st.lists(st.sampled_from(FIELDS), min_size=1, max_size=2)):
        kind = draw(st.sampled_from(["leave out", "another", "codec's"]))
        if kind == "leave out":
            state.pop(name, None)
        elif kind == "another":
            state[name] = draw(things)
        elif fields := sorted(vars(c.codec)):
            codec = object.__new__(type(c.codec))
            codec.__dict__.update(vars(c.codec))
            codec.__dict__.pop(draw(st.sampled_from(fields)))
            state["codec"] = codec
    found = object.__new__(Compressed)
    found.__setstate__(state)
    return found


@fuzz
@given(of_any_fields())
def test_fields_that_are_missing_or_of_any_kind(c):
    assert_refused_or_read(c)


@pytest.mark.parametrize("state", [None, 3, [("codec", 1)], "codec"], ids=repr)
def test_a_state_that_is_no_mapping(state):
    with pytest.raises(TypeError, match="the state of a Compressed must be a mapping, got"):
        object.__new__(Compressed).__setstate__(state)


def test_what_is_missing_is_named():
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    for name in FIELDS:
        found = object.__new__(Compressed)
        found.__setstate__({other: getattr(c, other) for other in FIELDS if other != name})
        with pytest.raises(ValueError, match=f"a Compressed lacks {name}; {DAMAGED}"):
            actcore.decompress(found)


class RunsCode:
    """Pickles as a call that leaves a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (str(self.trace), "w")


def test_a_file_cannot_run_code(tmp_path):
    """The same bytes do run it where a pickle is trusted, so the test can fail."""
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    trace = tmp_path / "trace"
    found = loaded(saved([c, RunsCode(trace)]))
    assert isinstance(found, pickle.UnpicklingError)
    assert not trace.exists()
    torch.load(io.BytesIO(saved(RunsCode(trace))), weights_only=False).close()
    assert trace.exists()


def test_a_form_that_says_it_is_sound_is_checked_as_it_comes_from_a_file():
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    found = loaded(saved(SaysSound(c)))
    assert not isinstance(found, Compressed) or not found.sound

"""The step graph: what a training step computes, saves and takes, captured once.

The files of this room run the forward and its backward on tensors without elements and make a graph (``graphs``);
``costs`` says what operators take in time and scratch memory; ``dispatch`` is what these know of ATen's operators and
of memory.
"""

"""The step graph: what a training step computes, saves and takes, captured once.

``capturing`` runs the forward and its backward on tensors without elements and makes a graph (``graphs``); ``costs``
says what operators take in time and scratch memory; ``dispatch`` is what these know of ATen's operators and of memory.
"""

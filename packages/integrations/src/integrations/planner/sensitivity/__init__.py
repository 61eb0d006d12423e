"""Bits for each saved tensor by how much its rounding changes the gradient: levels L2, L2.1, L2.2 and L3.

probe.py        measures that in an ordinary step: no extra pass
two_seed.py     measures it as GACT does, at a pass a tensor: the reference
bit_plan.py     from the measurement to a plan within the budget: identity -> bits
adapt.py        handle.adapt(closure)
gradient_error.py   how wrong the gradient is
monitor.py      the same every so many steps, and what comes of it
finite.py       which saved tensor was the first that is not finite
"""

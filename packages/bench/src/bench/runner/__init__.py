"""How measurements run: one after another, in processes of their own, with time and memory measured.

command.py         what makes a suite a command, and its options
run.py             the one loop: entries that are missing, each written as soon as it is measured
child.py           one entry in a process of its own
clock.py           operators and training steps that take turns
memory.py          live bytes and the activation peak of a training step
process_memory.py  the counters and limits below them
gradients.py       gradients of a step, and how far two differ
"""

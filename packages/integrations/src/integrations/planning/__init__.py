"""Plans of how every value of a forward waits for backward: the stores that its savers bear, and what they cost.

``checkpoint.planning`` knows graphs and options; here the rules of ``saved`` say what the options are.
"""

from integrations.planning.planner import planned

__all__ = ["planned"]

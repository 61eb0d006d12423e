"""Plans of how every value of a forward waits for backward: what stores its savers bear, what they cost, and the search.

``checkpoint.planning`` knows graphs and options; here the rules of ``saved`` say what the options are.
"""

from integrations.planning.planner import planned

__all__ = ["planned"]

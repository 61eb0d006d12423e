"""From an operator and a role to what backward needs of a tensor, and to the codecs that store that; for eager and
compiled code.

``add_rule`` gives an operator of one's own a rule: ``docs/how-to/extend.md``.
"""

from integrations.policies.rules import Need, Rule, add_rule

__all__ = ["Need", "Rule", "add_rule"]

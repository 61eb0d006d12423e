"""Rules for operators of one's own: ``add_rule``. ``docs/how-to/extend.md`` has an example."""

from integrations.policies import Need, Rule, add_rule

__all__ = ["Need", "Rule", "add_rule"]

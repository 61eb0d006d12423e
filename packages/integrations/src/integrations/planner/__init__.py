"""Plans: how each value that backward reads waits for it; solved under budgets, explained, saved.

``plan_with_stores`` is where rules meet the search: ``savers`` says which operators save a value, ``candidates``
finds the stores that they bear, ``search`` solves for them. The other files are about the plan that comes out.
"""

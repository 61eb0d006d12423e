"""Plans: how each value that backward reads waits for it; solved under budgets, explained, saved.

``plan_with_stores`` is where rules meet the search: ``savers`` and ``stored_part`` say which stores the operators that
save a value bear, ``candidates`` finds its stores, ``search`` solves for them. The other files are about the plan that
comes out.
"""

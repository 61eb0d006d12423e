"""Plans: of each value that backward reads, how it waits until then; solved under budgets, explained, saved.

``front`` is where rules meet the search: ``savers`` and ``parts`` say what the savers of a value bear, ``offered``
makes the menu of its stores, ``search`` solves for them, and the rest is about the plan that comes out.
"""

"""Callbacks for the trainers of other libraries. Users import them from the module named after the library."""

"""Callbacks for the trainers of other libraries, which users import from the module that is named after the library."""

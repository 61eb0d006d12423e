"""Where would a model's memory go, and what would a level save? Answered without training it or computing anything."""

from integrations.forecast.run import forecast

__all__ = ["forecast"]

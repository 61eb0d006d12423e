"""Forecasts where a model's memory would go, and what a level would save, without training or computing anything."""

from integrations.estimate.forecast.run import forecast

__all__ = ["forecast"]

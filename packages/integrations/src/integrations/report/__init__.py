"""``Report``: where the bytes of one forward's saved tensors went. As a table, JSON, a chart, and a page."""

from integrations.report.report import NOTHING_LEFT, Report
from integrations.report.row import Row
from integrations.report.words import format_bytes

__all__ = ["NOTHING_LEFT", "Report", "Row", "format_bytes"]

"""``Report``: where the bytes of one forward's saved tensors went, as a table, JSON, a chart, and a page."""

from integrations.report.rank_summary import RankSummary
from integrations.report.report import Report
from integrations.report.row import Row

__all__ = ["RankSummary", "Report", "Row"]

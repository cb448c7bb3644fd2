"""The report as one page that needs nothing else: no network, no installed tool."""

from markov_spec.report.page.writing import check_report, write_report

__all__ = ["check_report", "write_report"]

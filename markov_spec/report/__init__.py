"""Results for people and for other programs: tables, JSON and CSV. Reads results only."""

from markov_spec.report.attribution import attribution_json, attribution_table
from markov_spec.report.certificates import certificates_plot, certificates_table
from markov_spec.report.comparison import comparison_json, comparison_latex, comparison_markdown, comparison_table
from markov_spec.report.page import check_report, write_report
from markov_spec.report.tables import (
    bounds_table,
    evaluation_frame,
    evaluation_json,
    evaluation_latex,
    evaluation_markdown,
    evaluation_table,
    facts_table,
    findings_table,
    proxies_table,
)
from markov_spec.report.trees import calibration_table, curve_table, optimum_table

__all__ = [
    "attribution_json",
    "attribution_table",
    "bounds_table",
    "calibration_table",
    "certificates_plot",
    "certificates_table",
    "check_report",
    "comparison_json",
    "comparison_latex",
    "comparison_markdown",
    "comparison_table",
    "curve_table",
    "evaluation_frame",
    "evaluation_json",
    "evaluation_latex",
    "evaluation_markdown",
    "evaluation_table",
    "facts_table",
    "findings_table",
    "optimum_table",
    "proxies_table",
    "write_report",
]

"""Results for people and for other programs: tables, JSON and CSV. Reads results only."""

from markov_spec.report.certificates import certificates_plot, certificates_table
from markov_spec.report.comparison import comparison_json, comparison_table
from markov_spec.report.tables import (
    bounds_table,
    evaluation_csv,
    evaluation_json,
    evaluation_table,
    facts_table,
    findings_table,
    proxies_table,
)
from markov_spec.report.trees import calibration_table, curve_table, optimum_table

__all__ = [
    "bounds_table",
    "calibration_table",
    "certificates_plot",
    "certificates_table",
    "comparison_json",
    "comparison_table",
    "curve_table",
    "evaluation_csv",
    "evaluation_json",
    "evaluation_table",
    "facts_table",
    "findings_table",
    "optimum_table",
    "proxies_table",
]

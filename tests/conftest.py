"""Options and settings of the whole suite."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
pytest_plugins = ["tests.tiny_model"]
settings.register_profile("markov_spec", deadline=None, derandomize=True)
settings.load_profile("markov_spec")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skips-fail", action="store_true", help="count a skipped test as a failure")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.getoption("--skips-fail"):
        report.outcome = "failed"
    return report

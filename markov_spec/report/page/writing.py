"""From a study to a page."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from textwrap import shorten
from typing import Any

from markov_spec.arrays import RequestError
from markov_spec.comparison import required_prompts
from markov_spec.comparison.cells import basis
from markov_spec.evaluation import Study
from markov_spec.evaluation.study import SPREAD_TOKENS, SPREAD_WIDTH
from markov_spec.report.page import view

NEEDED = ("altair", "jinja2", "vl_convert")
DETECT = 0.01
ENDINGS = (".html", ".htm")
GLOSSARY = (
    ("Exact", "equal, to rounding, to what literal speculative decoding does on average over all runs that emit these "
     "very tokens. Bound, heuristic and teacher-forced figures are named so."),
    ("Pooled, macro mean, request mean", "all tokens by all rounds; the unweighted mean of that over benchmarks; the "
     "mean over rollouts of tokens per round of a single run."),
    ("Verdicts", "near-tie: the interval of the ratio comes within 1 % of 1, or within the margin that was asked for, "
     "and goes no farther than 10 %: the difference may be too small to matter. Equivalent: certainly within the "
     "margin. Better, worse: the interval and the corrected p both say so. Undecided: none of these."),
    ("Corrected", "p by Holm, so that one of many pairs does not win by luck."),
    ("Without one prompt", "the least and the largest ratio when any one prompt is left out."),
)  # fmt: skip


def write_report(found: Study, path: str | Path, *, command: str | None = None) -> Path:
    """Write a study as one HTML page, with all that it needs inside: charts, tables and rollouts.

    Parameters
    ----------
    found : Study
    path : str or Path
        Overwritten if it exists.
    command : str, optional
        What reproduces the page, shown on it.

    Returns
    -------
    Path

    Raises
    ------
    RequestError
        If the extra ``report`` is not installed, or the path cannot be written: then what stood there still does.

    Examples
    --------
    >>> import tempfile, markov_spec as ms
    >>> found = ms.study("data/demo", ["quant5", "drop1"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = ms.write_report(found, f"{folder}/report.html").read_text(encoding="utf-8")
    >>> len(page) < 3_000_000, "http-equiv" in page
    (True, False)
    """
    if not isinstance(found, Study):
        raise RequestError(f"report: found a {type(found).__name__}; allowed: a Study, from ms.study(store, ...)")
    check_report(path)
    text, target = _page(found, command), Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")
        part.replace(target)
    except OSError as error:
        raise RequestError(f"report: {path} cannot be written ({error.strerror}); allowed: a file") from error
    finally:
        part.unlink(missing_ok=True)
    return Path(path)


def check_report(path: str | Path) -> None:
    """Refuse a report for which the extra is not installed, or whose folder is not there."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise RequestError(
            f"a report needs {', '.join(missing)}: pip install 'markov-spec[report]', or '.[report]' in a clone"
        )
    if Path(path).suffix.lower() not in ENDINGS or Path(path).is_dir():
        raise RequestError(f"report: found {path}; allowed: a file that ends in {' or '.join(ENDINGS)}")
    if not Path(path).absolute().parent.is_dir():
        raise RequestError(f"report: folder {Path(path).parent} does not exist; allowed: a file in a folder")


def _page(found: Study, command: str | None) -> str:
    from jinja2 import Environment, PackageLoader
    from markupsafe import Markup, escape

    def breakable(name: str) -> Markup:  # a line may end behind its commas and colons
        return Markup(re.sub("([,:])", r"\1<wbr>", str(escape(name))))

    inside = Environment(loader=PackageLoader("markov_spec.report", "page"), autoescape=True, trim_blocks=True)
    inside.filters["breakable"] = breakable
    own = files("markov_spec.report.page")
    css, script = (own.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    compared = found.comparison
    colors = view.colors(found)
    return inside.get_template("page.html.jinja").render(
        title=f"{' against '.join(compared.primary)} - markov_spec",
        compared=compared,
        basis=basis(compared),
        notes=compared.notes,
        cards=_cards(found, colors),
        contenders=view.contenders(found),
        winners=_winners(found),
        benchmarks=view.benchmarks(found),
        pairs=view.pairs(found),
        needed=_needed(found),
        left_pairs=max(compared.own("pairs").height - view.MOST_ROWS, 0),
        luck=view.luck(found),
        figures=view.figures(found),
        colors=colors,
        spread_title=(
            f"Rounds that a run of decoding takes for 100 tokens, over the runs of {found.spread_rollouts} rollouts, "
            f"each with the same weight, in steps of {SPREAD_WIDTH:g}; R rounds for T tokens count as 100 R / T"
        ),
        most_tokens=SPREAD_TOKENS,
        sweep=view.sweep(found),
        sweep_notes=found.sweep_notes,
        sweep_title=(
            "Tokens per round by draft length; rings mark the lengths that are compared"
            if found.price is None
            else "Speed-up by draft length; rings mark the best"
        ),
        sweep_colors=view.sweep_colors(found),
        attribution=found.attribution,
        by_depth=view.attributed(found, found.attribution.by_depth, ("depth",)),
        by_benchmark=view.attributed(found, found.attribution.by_benchmark, ("benchmark",)),
        by_class=view.classes(found),
        starts=view.starts(found),
        told_text=found.attribution.starts["before"].null_count() < len(found.attribution.starts),
        price=found.price is not None,
        traces=view.traces(found),
        method=_method(found),
        glossary=GLOSSARY,
        command=command,
        version=version("markov-spec"),
        css=Markup(css),
        bundle=Markup(_bundle()),
        script=Markup(script),
    )


@cache
def _bundle() -> str:
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")


def _cards(found: Study, colors: dict[str, str]) -> list[dict[str, Any]]:
    compared = found.comparison
    rows = {row["contender"]: row for row in compared.own("contenders").to_dicts()}
    form = ".3f" if compared.measure == "tokens_per_round" else ".4g"
    return [
        {
            "name": name,
            "color": color,
            "value": view.number(rows[name]["pooled"], form).shown,
            "interval": view.between(rows[name]["pooled_low"], rows[name]["pooled_high"], form).shown,
        }
        for name, color in colors.items()
    ]


def _winners(found: Study) -> str:
    own = found.comparison.own("winners")
    won: dict[str, list[str]] = {}
    for row in own.to_dicts():
        won.setdefault(row["winner"] or "no one, a tie", []).append(row["benchmark"] or row["by"])
    return "Best: " + "; ".join(f"{name} ({', '.join(where)})" for name, where in won.items()) + "." if won else ""


def _method(found: Study) -> list[tuple[str, str]]:
    facts, compared = found.facts, found.comparison
    kinds = "; ".join(f"{result.contender} {result.exactness}" for result in found.evaluations)
    drafted = found.evaluations[0].first_start == 0
    first = "the first token is drafted too" if drafted else "the prefill emits the first token, which is in no round"
    pairs = "all pairs" if compared.baseline is None else f"the pairs with {compared.baseline}"
    target = facts["target"]
    return [
        ("Store", f"{Path(facts['store']).name}: {facts['rollouts']} rollouts, {facts['tokens']} tokens"),
        ("Fingerprint", facts["fingerprint"]),
        ("Target", f"{target.get('target', 'not recorded')}; sampling {_settings(target.get('sampling'))}"),
        ("Drafters", "; ".join(_drafters(found))),
        ("Figures", "Expected rounds of each rollout by a Markov reward process over the starts of rounds: " + kinds),
        (
            "Counting",
            f"The target's own token of each round counts; the last round commits no token beyond the end; {first}.",
        ),
        ("Price", "none" if found.price is None else shorten(" ".join(repr(found.price).split()), 240)),
        (
            "Statistics",
            f"Prompts, not rollouts, are resampled. Intervals of {100 * compared.level:g} % by leaving prompts out; "
            "bootstrap intervals are bias-corrected and accelerated; p by flipping the signs of whole prompts, "
            f"corrected by Holm over {pairs}.",
        ),
    ]


def _drafters(found: Study) -> Iterator[str]:
    for name in dict.fromkeys(result.drafter for result in found.evaluations):
        facts = found.facts["drafters"][name]
        told = [f"{facts['kind']}, rule {facts['rule']}"]
        told += [str(facts["source"])] if facts.get("source") else []
        yield f"{name} ({', '.join(told)})"


def _needed(found: Study) -> str:
    rows = required_prompts(found.comparison, detect=DETECT).to_dicts()
    one, other = found.comparison.primary
    for row in rows:
        pair = (row["measure"], row["contender"], row["baseline"])
        if pair == (found.comparison.measure, one, other) and row["prompts"] is not None:
            return (
                f"To find a difference of {DETECT:.0%} between {one} and {other} four times in five, {row['prompts']} "
                f"prompts like these are needed; here are {found.comparison.prompts}."
            )
    return ""


def _settings(sampling: dict[str, Any] | None) -> str:
    if sampling is None:
        return "not recorded"
    values = {name: " ".join(value) if isinstance(value, list) else value for name, value in sampling.items()}
    return ", ".join(f"{name} {value}" for name, value in values.items())

"""The command compare: what it prints is what ``ms.compare`` gives."""

import io
import json
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from rich.console import Console
from rich.measure import Measurement

import markov_spec as ms
from markov_spec.cli import main
from markov_spec.latency import read_price
from markov_spec.report import attribution_table, comparison_latex, comparison_markdown, comparison_table
from markov_spec.report.sheet import Sheet
from tests.comparison.studies import vectors

DEMO = str(Path(__file__).parents[1] / "data" / "demo")
WORDS = ["compare", DEMO, "quant5", "drop1:K=3", "--resamples", "99", "--seed", "4"]


@pytest.fixture
def found():
    return ms.compare(DEMO, ["quant5", "drop1:K=3"], resamples=99, rng=4)


def test_table_has_every_contender_pair_and_note_against_reference(capsys, found):
    assert main(WORDS) == 0
    words = capsys.readouterr().out.split()
    assert " ".join(words).startswith(found.headline)
    for row in found.contenders.to_dicts():
        at = words.index("macro") + words[words.index("macro") :].index(row["contender"])
        assert words[at + 1] == f"{row['pooled']:.4f}" and words[at + 5] == f"{row['macro_mean']:.4f}"
    for row in found.benchmarks.to_dicts():
        assert f"{row['pooled']:.4f}" in words
    (pair,) = found.pairs.to_dicts()
    told = " ".join(words)
    assert (
        f"{pair['ratio']:.4f} {pair['ratio_low']:.4f} to {pair['ratio_high']:.4f}" in told and pair["verdict"] in words
    )
    assert all(note in told for note in found.notes)


def test_json_and_csv_against_reference(capsys, tmp_path, found):
    assert main([*WORDS, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["headline"] == found.headline and told["primary"] == list(found.primary)
    for name in ("pairs", "contenders", "benchmarks", "winners", "variance_account"):
        assert told[name] == json.loads(json.dumps(getattr(found, name).to_dicts()))
    assert main([*WORDS, "--out", str(tmp_path / "pairs.csv")]) == 0
    read = pl.read_csv(io.BytesIO((tmp_path / "pairs.csv").read_bytes()))
    assert read["ratio"].to_list() == pytest.approx(found.pairs["ratio"].to_list(), rel=1e-12)


def test_baseline_is_added_and_many_pairs_are_counted_invariant(capsys):
    assert main(["compare", DEMO, "block", "--baseline", "drop3", "--resamples", "99"]) == 0
    assert "block is worse than drop3" in capsys.readouterr().out
    assert main(["compare", DEMO, "quant5:K=1-6", "--resamples", "9"]) == 0
    assert "5 more pairs in JSON and CSV." in capsys.readouterr().out


PRICES = "tokens,ms,draft_ms\n1,30,1\n4,31,1\n8,33,1\n"


@pytest.fixture
def prices(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(PRICES)
    return str(path)


def test_prices_against_reference(capsys, prices):
    assert main([*WORDS, "--price", prices]) == 0
    told = " ".join(capsys.readouterr().out.split())
    found = ms.compare(DEMO, ["quant5", "drop1:K=3"], price=read_price(prices), resamples=99, rng=4)
    assert found.measure == "price_per_token" and told.startswith(found.headline)
    assert "contender price 95 % interval speed-up 95 % interval tokens per round macro mean chat" in told
    narrow = Console(width=58, file=io.StringIO())
    narrow.print(comparison_table(found))
    heads = [line.split() for line in narrow.file.getvalue().splitlines() if line.startswith("contender ")]
    assert "contender speed-up 95 % interval".split() in [words[:5] for words in heads]
    lengths = dict(found.contenders.filter(measure="tokens_per_round").select("contender", "pooled").rows())
    for row in found.contenders.filter(measure="price_per_token").to_dicts():
        none = ms.evaluate(DEMO, "quant5:rule=none", price=read_price(prices)).price.sum()
        assert row["speedup"] == pytest.approx(none / row["total"])
        fast = f"{row['speedup']:.4f} {row['speedup_low']:.4f} to {row['speedup_high']:.4f}"
        assert f"{fast} {lengths[row['contender']]:.4f} {row['macro_mean']:#.4g}" in told


def test_benchmarks_by_themselves_against_reference(capsys, tmp_path, found):
    assert main([*WORDS, "--by", "benchmark"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "macro mean quant5" in told and f"Ratios on a benchmark are to {found.primary[1]}." in told
    for row in found.benchmarks.to_dicts():
        assert f"{row['benchmark']} {row['contender']} 16 {row['pooled']:.4f} {row['pooled_low']:.4f} to" in told
        assert row["ratio"] is None or f"{row['ratio']:.4f} {row['ratio_low']:.4f} to {row['ratio_high']:.4f}" in told
    for words, wanted in (([], found.pairs), (["--by", "benchmark"], found.benchmarks)):
        out = tmp_path / "found.parquet"
        assert main([*WORDS, *words, "--out", str(out)]) == 0
        assert_frame_equal(pl.read_parquet(out), wanted, check_exact=True)
    assert main([*WORDS, "--by", "benchmark", "--format", "csv"]) == 0
    assert pl.read_csv(io.StringIO(capsys.readouterr().out))["contender"].to_list() == list(
        found.benchmarks["contender"]
    )


def test_markdown_and_latex_against_reference(capsys, tmp_path, found):
    for name, form, wanted in (("a.md", "markdown", comparison_markdown), ("a.tex", "latex", comparison_latex)):
        assert main([*WORDS, "--format", form]) == 0 and main([*WORDS, "--out", str(tmp_path / name)]) == 0
        assert capsys.readouterr().out == (tmp_path / name).read_text() == wanted(found)
        assert main([*WORDS, "--by", "benchmark", "--format", form]) == 0
        assert capsys.readouterr().out == wanted(found, "benchmark")
    assert comparison_latex(found).count(r"\begin{tabular}") == 2
    pair = found.pair(*found.primary)
    ends = f"{pair['ratio_low']:.4f} to {pair['ratio_high']:.4f}"
    told = f"\n{pair['contender']} & {pair['baseline']} & {pair['ratio']:.4f} & {ends} & {pair['p']:.2g} & "
    assert told in comparison_latex(found) and told in comparison_latex(found, "benchmark")
    row = found.contenders.row(0, named=True)
    ends = f"{row['pooled_low']:.4f} to {row['pooled_high']:.4f}"
    assert f"\nquant5 & {row['pooled']:.4f} & {ends} & {row['macro_mean']:.4f} & " in comparison_latex(found)
    first, header, line, *rows = (part for part in comparison_markdown(found).splitlines() if part)
    assert first == f"**{found.headline}**" and header.startswith("| contender | pooled | 95 % interval | macro mean")
    assert line == "|---|" + "---:|" * 7 and rows[0].startswith(f"| quant5 | {row['pooled']:.4f} | {ends} |")
    assert rows[-1] == "tokens per round; 128 rollouts of 64 prompts, which are resampled."


def test_names_are_escaped_invariant():
    name = r"a|b_*<i>`\^~&%$#{}[x]"
    frame = vectors({name: [5.0, 6, 7], "plain\nname": [4.0, 6, 7]}, tokens=[9, 9, 9])
    found = ms.compare_vectors(frame)
    assert r"a\|b\_\*\<i\>\`\\^\~\&%$\#{}\[x\] | 1.5000" in comparison_markdown(found)
    assert r"| plain\\nname |" in comparison_markdown(found) and "\n- note: 3 prompts: " in comparison_markdown(found)
    told = r"a\textbar{}b\_*\textless{}i\textgreater{}`\textbackslash{}\textasciicircum{}\textasciitilde{}"
    assert told + r"\&\%\$\#\{\}[x] & 1.5000" in comparison_latex(found)
    assert "\n" + r"plain\textbackslash{}nname & 1.5882 & " in comparison_latex(found)
    html = found._repr_html_()
    assert "<i>" not in html and "a|b_*&lt;i&gt;`" in html and ">1.5000</td>" in html
    assert html.count("tokens per round; 3 rollouts of 3 prompts, which are resampled.") == 1
    shown = Console(width=200, file=io.StringIO())
    shown.print(comparison_table(found))
    assert name in shown.file.getvalue()


@pytest.mark.parametrize("width", [60, 40])
def test_narrow_terminals_show_all_columns_against_reference(found, monkeypatch, width):
    monkeypatch.setenv("NO_COLOR", "1")
    narrow = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    narrow.print(comparison_table(found, "benchmark"))
    told = narrow.file.getvalue()
    assert "\x1b[33m" not in told and "…" not in told
    plain = Console(width=width, file=io.StringIO())
    plain.print(comparison_table(found))
    lines = plain.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width and sum(line.startswith("contender ") for line in lines) > 2
    for row in found.contenders.to_dicts():
        words = [
            row["contender"],
            f"{row['pooled']:.4f}",
            f"{row['pooled_low']:.4f}",
            "to",
            f"{row['pooled_high']:.4f}",
        ]
        assert any(line.split()[:5] == words for line in lines)
    for row in found.benchmarks.to_dicts():
        assert f"{row['pooled']:.4f}" in plain.file.getvalue()


def test_long_names_are_folded_against_closed_form():
    sheet = Sheet(
        ["name", "x", "low to high", "y"], "lr+r", [["a" * 30, "1", "0 to 2", "3"], ["b", "4", "3 to 5", "6"]]
    )
    console = Console(width=30, file=io.StringIO())
    console.print(sheet)
    wanted = ["name x low to high", "a" * 14 + " 1 0 to 2", "a" * 14, "aa", "b 4 3 to 5", ""]
    wanted += ["name y", "a" * 27 + " 3", "aaa", "b 6"]
    assert [" ".join(line.split()) for line in console.file.getvalue().splitlines()] == wanted


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quant5"], "contenders: found quant5; allowed: two or more"),
        (["quant5", "nobody"], "found drafter 'nobody'"),
        (["quant5", "drop1", "quant5"], "contenders: found quant5 more than once; allowed: each once"),
        (["quant5", "drop1", "--format", "parquet"], "found parquet without a file"),
        (["quant5", "drop1", "--out", "nowhere/x.md"], "folder nowhere does not exist"),
        (["quant5", "drop1", "--price", "nowhere.csv"], "--price: nowhere.csv: No such file"),
        (["quant5", "drop1", "--level", "2"], "--level"),
        (["quant5", "drop1", "--margin", "0"], "'--margin': found 0; allowed: above 0 and below 1, 0.01 for 1 %"),
        (["quant5", "drop1", "--margin", "5"], "'--margin': found 5; allowed: above 0 and below 1"),
        (["quant5", "drop1", "--margin", "nan"], "'--margin': found nan"),
        (["quant5", "drop1", "--resamples", "100000000000"], "less than or equal to 1000000"),
        (["quant5", "--baseline", "nobody"], "found drafter 'nobody'"),
    ],
)
def test_what_cannot_be_compared_is_refused_invariant(capsys, words, message):
    assert main(["compare", DEMO, *words]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_control_characters_are_shown_against_closed_form():
    name, benchmark = "a\x1b[2J\r\u202e", "b\n\x1b[31m"
    frame = vectors({name: [5.0, 60], "b": [4.0, 70]}, tokens=[9, 90], benchmark=[benchmark, "plain"])
    found = ms.compare_vectors(frame)
    shown = Console(width=200, file=io.StringIO())
    shown.print(comparison_table(found, "benchmark"))
    texts = [shown.file.getvalue()]
    texts += [make(found, by) for make in (comparison_markdown, comparison_latex) for by in (None, "benchmark")]
    for text in texts:
        assert all(char.isprintable() or char == "\n" for char in text)
        unescaped = (
            text.replace(r"\textbackslash{}", "\\").replace("\\\\", "\\").replace(r"\[", "[").replace(r"\]", "]")
        )
        assert r"a\x1b[2J\r\u202e" in unescaped
    assert r"b\n\x1b[31m" in texts[0]


def test_where_fits_a_narrow_terminal_against_reference():
    narrow = Console(width=60, file=io.StringIO())
    why = ms.attribute(DEMO, "drop1", "quant5")
    narrow.print(attribution_table(why))
    lines = narrow.file.getvalue().splitlines()
    wanted = Measurement.get(narrow, narrow.options.update(max_width=10_000), attribution_table(why))
    assert max(map(len, lines)) <= 60 and wanted.minimum <= 60 < wanted.maximum
    wide = Console(width=200, file=io.StringIO())
    wide.print(attribution_table(why))
    told = narrow.file.getvalue().split()
    ends = ["".join(shown.file.getvalue().split()).count("...") for shown in (narrow, wide)]
    assert ends[0] == ends[1] > 0  # texts are folded, not cut
    assert all(told.count(word) >= 1 for word in wide.file.getvalue().split() if word[:1] in "+-0123456789")

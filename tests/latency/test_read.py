"""Prices read from files: every form against the table made by hand."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from markov_spec.latency import PRICES, Affine, Table, read_price
from tests.latency.test_rounds import HARDWARE

PLAIN = "tokens,seconds\n1,1.0\n3,1.2\n2,1.1\n"
PROBES = {
    "source": "two settings",
    "probes": [
        {"gpu": "A", "n": [1, 4], "ms": [30, 36.5], "draft_ms": 5, "prefix": 1024, "table": None, "note": [1, 2, 3]},
        {"gpu": "A", "n": [1, 4], "ms": [40, 48], "draft_ms": 6, "prefix": 2048, "table": 6, "note": []},
        {"gpu": "H 100", "n": [1, 4], "ms": [15, 17], "draft_ms": 2, "prefix": 1024, "table": 5, "note": []},
    ],
}
OWN = {"tokens": "n", "context": "prefix"}


@pytest.fixture
def file(tmp_path):
    def write(content, name=None):
        text = content if isinstance(content, str) else json.dumps(content)
        path = tmp_path / (name or ("passes.csv" if isinstance(content, str) else "passes.json"))
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        "\ufeffseconds , tokens\r\n1.0, 1 \r\n\r\n1.1,2\r\n1.2,3\r\n",
        "nodes,milliseconds\n0,1000\n1,1.1e3\n2,1200.0\n",
        'ms,tokens,"who, where"\n1000,1.0,"a ""b"", c"\n1100,2,"two\nlines"\n1200,3,\n',
        "tokens,price,batch\n1,1,1\n2,1.1,1\n3,1.2,1\n",
        "tokens,seconds,context\n1,1.0,7\n2,1.1,7\n3,1.2,7\n",
        [{"tokens": 2, "seconds": 1.1}, {"tokens": 1, "seconds": 1}, {"tokens": 3.0, "seconds": 1.2, "gpu": "A"}],
        [{"tokens": [3, 1, 2], "ms": [1200, 1000, 1100]}],
        {
            "made": "by hand",
            "sizes": [3],
            "rows": [{"nodes": [0, 1], "seconds": [1.0, 1.1]}, {"nodes": 2, "seconds": 1.2}],
        },
        {"table": {"sizes": [1, 2, 3], "prices": [1.0, 1.1, 1.2]}, "made": "by hand"},
    ],
)
def test_forms_against_closed_form(file, content):
    price = read_price(file(content))
    assert isinstance(price, Table) and price.sizes.tolist() == [1, 2, 3]
    assert price.of(2, [0, 1, 2], 12345).tolist() == [1.0, 1.1, 1.2]


def test_settings_against_closed_form(file):
    path = file(PROBES)
    a = read_price(path, where={"gpu": "A"}, columns=OWN)
    assert a.of(1, [0, 3], 1024).tolist() == [0.03, 0.0365 + 0.005] and a.contexts.tolist() == [1024, 2048]
    np.testing.assert_allclose(a.of(1, [0, 3], 1536), [0.035, 0.04225 + 0.0055], rtol=1e-14)
    text = f"{path}?gpu=H%20100&tokens=n&context=prefix"
    for source in (
        text,
        text.replace("%20", " "),
        f"{path}?table=5&tokens=n",
        f"{path}?gpu=H 100&tokens=n&prefix=1024",
    ):
        assert read_price(source).of(1, [0, 3], 0).tolist() == [0.015, 0.017 + 0.002]
    for where in ({"table": None}, {"table": ""}, {"gpu": "A", "context": 1024}, {"gpu": "A", "prefix": "1024"}):
        assert read_price(path, where=where, columns=OWN).of(1, [0, 3], 0).tolist() == [0.03, 0.0365 + 0.005]
    assert read_price(f"{path}?gpu=A&tokens=n&context=prefix&context=1024").of(1, 0, 5) == 0.03
    free = read_price(path, where={"gpu": "A"}, columns=OWN, per_call=0.0, per_depth=0.25)
    assert free.of(1, [0, 3], 1024).tolist() == [0.03 + 0.25, 0.0365 + 0.25]


def test_between_and_plain_against_closed_form(file):
    path = file("width,cost\n2,1.5\n4,2.5\n")
    columns = {"tokens": "width", "price": "cost"}
    stair = read_price(path, columns=columns, plain=1)
    assert stair.of(1, [0, 1, 2, 3], 0).tolist() == [1, 1.5, 2.5, 2.5]
    linear = read_price(f"{path}?tokens=width&price=cost&plain=1.0&between=linear&per_call=.5&per_depth=.25")
    assert linear.of([0, 1, 2, 3], [0, 1, 2, 3], 0).tolist() == [1, 2.25, 3, 3.75]
    for refused in (read_price(path, columns=columns), read_price(path, columns=columns, plain=1, between="refuse")):
        with pytest.raises(ValueError, match=r"drafted \+ 1: found [13]; allowed: 2 (to|or) 4"):
            refused.of(1, [0, 2], 0)


def test_batches_against_closed_form(file):
    path = file("batch,tokens,ms\n1,1,10\n1,2,11\n8,1,20\n8,2,28\n")
    assert read_price(path).of(1, [0, 1], 0).tolist() == [0.010, 0.011]
    assert read_price(f"{path}?batch=8").of(1, [0, 1], 0).tolist() == [0.020, 0.028]
    assert read_price(path).at_batch(8).of(1, [0, 1], 0).tolist() == [0.020, 0.028]
    assert read_price(f"{path}?batch=batch", batch=8).of(1, 0, 0) == 0.020
    with pytest.raises(ValueError, match=r"passes\.csv: batch: found 4; allowed: 1, 8, which the table lists"):
        read_price(path, batch=4)


def test_draft_column_is_not_read_without_drafts_against_closed_form(file):
    path = file("tokens,ms,draft_ms\n1,10,\n3,11,4\n5,13,6\n")
    assert read_price(path).of(1, [0, 1, 2, 3], 0).tolist() == [0.010, 0.015, 0.015, 0.019]
    linear = read_price(path, between="linear")  # of two tokens: the passes' mean, and a call as at three
    np.testing.assert_allclose(linear.of(1, [0, 1, 2, 3], 0), [0.010, 0.0145, 0.015, 0.017], rtol=1e-14)
    unread = file("tokens,ms,draft_ms,draft_seconds\n1,10,x,\n2,11,y,z\n")
    assert read_price(unread, per_call=1.0).of(1, [0, 1], 0).tolist() == [0.010, 1.011]


def test_rows_are_chosen_by_number_or_text_against_closed_form(file):
    path = file("gpu , run,tokens,ms\n A,1.50,1,5\nA,2,1,6\nb ,1.5,1,7\n")
    assert read_price(path, where={"gpu": "A", "run": 1.5}).of(0, 0, 0) == 0.005
    assert read_price(f"{path}?run=2.0").of(0, 0, 0) == 0.006 and read_price(f"{path}?gpu=b").of(0, 0, 0) == 0.007


def test_named_prices_against_closed_form(file):
    arguments = {"affine": {"base": 2.0, "per_draft": 0.5}, "table": {"sizes": [1, 2], "prices": [2.0, 2.5]}}
    arguments["roofline"] = {**HARDWARE, "tile": 1, "captured": [1, 2]}
    assert arguments.keys() == PRICES.keys()
    for name, given_ in arguments.items():
        price = read_price(file({name: given_}))
        assert isinstance(price, PRICES[name])
        np.testing.assert_array_equal(price.of(1, [0, 1], 9), PRICES[name](**given_).of(1, [0, 1], 9))
        assert (read_price(file({name: given_}), per_call=3.0).of(0, [0, 1], 9) - price.of(0, [0, 1], 9)).tolist() == [
            0,
            3,
        ]
    assert read_price(f"{file({'roofline': arguments['roofline']})}?batch=2").batch == 2


def test_case_92_read_from_a_file_against_closed_form(file):
    cost = read_price(file("nodes,price\n0,1\n2,2.377\n4,3.568\n6,4.228\n"))
    drafted, lengths = np.array([0, 2, 4, 6]), np.array([1, 2.22, 2.56, 2.55])
    assert np.argmin(cost.of(drafted, drafted, 0) / lengths) == 0


@given(
    st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True),
    st.lists(st.integers(0, 9999), min_size=1, max_size=3, unique=True),
    st.integers(0, 2**32 - 1),
)
def test_rows_in_any_order_against_reference(tmp_path_factory, sizes, contexts, seed):
    rng = np.random.default_rng(seed)
    cells = {(n, c): rng.random(2) for n in sizes for c in contexts}
    path = tmp_path_factory.mktemp("any") / "passes.csv"
    with path.open("w", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["context", "draft_seconds", "seconds", "tokens"])
        writer.writerows([c, call, paid, n] for (n, c), (paid, call) in rng.permutation(list(cells.items())))
    price = read_price(path, between="refuse")
    for (n, c), (paid, call) in cells.items():
        assert price.of(1, n - 1, c) == (paid + call if n > 1 else paid)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"passes\.csv: found an empty file; allowed: measurements"),
        (" \n\n", "found an empty file"),
        ("tokens,ms\n", "found no record; allowed: one measurement or more"),
        ("tokens,ms\n1,2,3\n", "line 2: found 3 values; allowed: 2, one for each column"),
        ("tokens,ms\n1\n", "line 2: found 1 values; allowed: 2"),
        ("tokens,ms,ms\n1,2,3\n", "line 1: found columns 'tokens', 'ms', 'ms'; allowed: names, each once"),
        ('tokens,ms\n1,"2"x\n', "line 2: not CSV"),
        (b"tokens,ms\n1,\xff\n", "found bytes that are no UTF-8, at 12"),
        (
            "tokens,gpu\n1,2\n",
            r"found columns tokens, gpu; allowed: one of seconds, .*, price, or its own name as seconds=NAME",
        ),
        ("n,ms\n1,2\n", r"found columns n, ms; allowed: one of tokens, nodes, or its own name as tokens=NAME"),
        ("tokens,nodes,ms\n1,0,2\n", "found tokens and nodes; allowed: one of tokens, nodes"),
        ("tokens,ms,seconds\n1,0,2\n", "found seconds and ms; allowed: one of"),
        (
            "tokens,price,draft_ms\n1,0,2\n",
            "found price and draft_ms; allowed: both of the file's own unit, or both of",
        ),
        ("tokens,ms,draft_price\n1,0,2\n", "found ms and draft_price; allowed"),
        ("tokens,ms\n1,2\n2,nan\n", r"passes\.csv, line 3, ms: found 'nan'; allowed: a finite number >= 0"),
        ("tokens,ms\n1,inf\n", "line 2, ms: found 'inf'; allowed"),
        ("tokens,ms\n1,-2\n", "line 2, ms: found '-2'; allowed: a finite number >= 0"),
        ("tokens,ms\n1,fast\n", "line 2, ms: found 'fast'; allowed"),
        ("tokens,ms\n1,\n", "line 2, ms: found ''; allowed"),
        ("tokens,ms\n1,1_000\n", "line 2, ms: found '1_000'; allowed"),
        ("tokens,ms\n0,2\n", r"line 2, tokens: found '0'; allowed: an integer from 1 to \d+"),
        ("tokens,ms\n1.5,2\n", "line 2, tokens: found '1.5'; allowed: an integer"),
        ("tokens,ms\n1e30,2\n", "line 2, tokens: found '1e30'; allowed: an integer"),
        ("nodes,ms\n-1,2\n", "line 2, nodes: found '-1'; allowed: an integer from 0"),
        ("tokens,ms,batch\n1,2,0\n", "line 2, batch: found '0'; allowed: an integer from 1"),
        ("tokens,ms,context\n1,2,x\n", "line 2, context: found 'x'; allowed: an integer from 0"),
        ("tokens,ms,draft_ms\n1,2,x\n2,2,y\n", "line 3, draft_ms: found 'y'; allowed: a finite number"),
        ("tokens,ms,batch\n1,2,8\n", r"passes\.csv: batch: found 1; allowed: 8, which the table lists"),
        (
            "tokens,ms\n2,2\n1,1\n2,3\n",
            "found 2 prices of 2 tokens, such as line 2, ms and line 4, ms; no other column tells",
        ),
        (
            "tokens,ms\n1,2\n1,2\n",
            "2 prices of 1 token, such as line 2, ms and line 3, ms; no other column tells them apart; allowed: one",
        ),
        (
            "tokens,ms,context\n1,2,0\n2,2,0\n1,2,9\n",
            "found no price of 2 tokens at context 9; allowed: one of each size at each context and batch",
        ),
        (
            "gpu,run,tokens,ms,context,batch\nA,x,1,1,5,2\nB,y,1,2,5,2\nA,z,1,3,5,2\nC,w,2,9,5,2\n",
            "found 3 prices of 1 token at context 5 and batch 2, such as line 2, ms and line 3, ms; "
            "allowed: one, chosen by gpu: A, B; run: x, y, z$",
        ),
        ("run,tokens,ms\n" + "".join(f"r{i},1,1\n" for i in range(20)), "run: r0, .*, r7 and 12 more"),
    ],
)
def test_refused_csv_invariant(file, content, message):
    if isinstance(content, bytes):
        path = file("")
        path.write_bytes(content)
    else:
        path = file(content)
    with pytest.raises(ValueError, match=message) as raised:
        read_price(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON: Expecting"),
        ("[" * 100_000, "not JSON: "),
        ("", "found an empty file"),
        ("3", "found a number without a list of records; allowed: a list of records, an object that holds one such"),
        ("null", "found null without"),
        ("{}", "found an object without a list of records"),
        ('{"a": [], "b": [1]}', "found an object without a list of records"),
        ('{"a": [{"ms": 1}], "b": [{"ms": 1}]}', "found lists of records a, b; allowed"),
        ("[]", "found no record"),
        ('[{"tokens": [], "ms": []}]', r"passes\.json: found only empty lists; allowed: one measurement or more"),
        ("[1]", r"passes\.json, \[0\]: found a number; allowed: a record, which is an object"),
        ('{"runs": [{"ms": 1}, true]}', r"runs\[1\]: found true or false; allowed: a record"),
        (
            '[{"tokens": [1, 2], "ms": [1]}]',
            r"\[0\]: found 2 values of tokens, 1 values of ms; allowed: lists of equal",
        ),
        ('{"runs": [{"tokens": [1, 2], "ms": [1, NaN]}]}', r"runs\[0\], ms\[1\]: found NaN; allowed: a finite number"),
        ('[{"tokens": 1, "ms": -1}]', r"\[0\], ms: found -1; allowed"),
        ('[{"tokens": 1, "ms": true}]', r"\[0\], ms: found true; allowed"),
        ('[{"tokens": 1, "ms": "fast"}]', r"\[0\], ms: found 'fast'; allowed"),
        ('[{"tokens": 1, "ms": 1}, {"tokens": 2}]', r"\[1\], ms: found nothing; allowed"),
        ('[{"tokens": 1, "ms": {"a": 1}}]', r'\[0\], ms: found {"a": 1}; allowed'),
        ('[{"tokens": [[1]], "ms": [1]}]', r"\[0\], tokens\[0\]: found \[1\]; allowed"),
        ('[{"tokens": 1, "ms": 1' + "0" * 400 + "}]", r"\[0\], ms: found 10*; allowed"),
        ('{"affine": {}}', "affine: found no base; allowed: base, per_depth"),
        ('{"affine": {"base": 1, "slope": 2}}', "affine: found 'slope'; allowed: base, per_depth"),
        ('{"affine": {"base": -1}}', r"passes\.json: affine: base: found -1; allowed: a finite number >= 0"),
        ('{"affine": {"base": [1, [2]]}}', "affine: .*inhomogeneous"),
        ('{"table": {"sizes": "x", "prices": 1}}', "table: sizes: found shape"),
        ('{"table": {"sizes": [1], "prices": [1], "_drafts": [1]}}', "table: found '_drafts'; allowed: sizes"),
        ('{"roofline": {"peak": 1}}', "roofline: found no bandwidth; allowed: peak, bandwidth"),
        ('{"affine": {"base": 1}, "roofline": {}}', "found affine and roofline; allowed: one price"),
    ],
)
def test_refused_json_invariant(file, content, message):
    path = file(content, "passes.json")
    with pytest.raises(ValueError, match=message) as raised:
        read_price(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("?gpu=B", {}, "where: found no column 'gpu'; allowed: tokens, seconds$"),
        ("?tokens=n", {}, "tokens: found no column 'n'; allowed: tokens, seconds$"),
        (
            "",
            {"columns": {"ms": "seconds", "width": "tokens"}},
            "columns: found 'width'; allowed: tokens, nodes, seconds",
        ),
        ("", {"columns": {"tokens": "tokens", "nodes": "tokens"}}, "found tokens and nodes; allowed: one of"),
        ("?tokens", {}, r"found 'tokens'; allowed: FILE, or FILE\?key=value&..., each key once"),
        ("?a=1&a=1", {}, "found 'a=1'; allowed"),
        ("?=1", {}, "found '=1'; allowed"),
        ("?", {"between": "cubic"}, "between: found 'cubic'; allowed: refuse, stair, linear"),
        ("?plain=x", {}, "plain: found 'x'; allowed: a number"),
        ("?plain=1", {"plain": 1.0}, "found plain in it and beside it; allowed: one of them"),
        ("", {"plain": 1.0}, r"found a price of 1 token, and plain=1\.0; allowed: one of them"),
        ("?context=5", {}, "where: found no column 'context'; allowed"),
        ("?per_call=-1", {}, r"per_call: found -1\.0; allowed"),
        ("?batch=2", {}, "batch: found 2; allowed: 1, as no batch is listed"),
    ],
)
def test_refused_options_invariant(file, query, options, message):
    path = file(PLAIN)
    with pytest.raises(ValueError, match=message) as raised:
        read_price(f"{path}{query}", **options)
    assert str(path) in str(raised.value)


def test_refused_selections_and_names_invariant(file, tmp_path):
    path = file(PROBES)
    with pytest.raises(ValueError, match=r"where: gpu: found no 'B'; allowed: A, H 100$"):
        read_price(path, where={"gpu": "B"}, columns=OWN)
    with pytest.raises(ValueError, match=r"where: table: found no '9'; allowed: \(empty\), 6$"):
        read_price(path, where={"gpu": "A", "table": 9}, columns=OWN)
    places = r"such as probes\[0\], ms\[0\] and probes\[1\], ms\[0\]"
    apart = r"prefix: 1024, 2048; table: \(empty\), 6; note: \[1, 2, 3\], \[\]"
    with pytest.raises(ValueError, match=f"2 prices of 1 token, {places}; allowed: one, chosen by {apart}$"):
        read_price(f"{path}?gpu=A&tokens=n")
    formula = file({"affine": {"base": 1.0}}, "formula.json")
    for options in ({"where": {"gpu": "A"}}, {"plain": 1.0}, {"between": "stair"}, {"batch": 8}):
        with pytest.raises(ValueError, match=f"affine: found '{next(iter(options))}'; allowed: base"):
            read_price(formula, **options)
    for name in ("passes.txt", "passes"):
        with pytest.raises(ValueError, match=r"found a name that ends in '(\.txt)?'; allowed: \.csv, \.json"):
            read_price(file(PLAIN, name))
    with pytest.raises(FileNotFoundError):
        read_price(tmp_path / "absent.csv")
    assert isinstance(read_price(formula), Affine)

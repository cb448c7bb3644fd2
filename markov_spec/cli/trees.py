"""The command on draft trees: every budget, the best one, and one tree drawn."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer
from rich.console import Group, RenderableType
from typer.core import TyperGroup

from markov_spec.arrays import RequestError
from markov_spec.cli.evaluate import FIRST_START, Form, Out, form_of
from markov_spec.cli.output import StorePath, app, price_of, refuse_overwriting, show
from markov_spec.drafting import BUILDERS, BestFirst
from markov_spec.evaluation import (
    LEARNED_HERE,
    Contender,
    accepted_at,
    budget_curve,
    draft_tree,
    is_learned,
    keep_tree_ranks,
    optimal_budget,
    tree_calibration,
)
from markov_spec.latency import Table
from markov_spec.report import calibration_table, curve_table, optimum_table
from markov_spec.store import open_store

CURVE = "curve"
MOST = 1_000_000  # nodes
Named = Annotated[
    str,
    typer.Argument(
        metavar="CONTENDER",
        help=f"A drafter with lists: [b]NAME[/b] or [b]NAME:tree=eagle2,beam=8[/b]; trees: {', '.join(BUILDERS)}, "
        "with [b]beam=10,depth=7[/b] of eagle2, [b]width=7[/b] of all-children, [b]K=4[/b] of any.",
    ),
]

BUDGETS_HELP = "Nodes of a tree, the root not counted: [b]1..1024[/b], [b]8,16,32..64[/b]."
Budgets = Annotated[str, typer.Option(metavar="LIST", help=BUDGETS_HELP)]
Seed = Annotated[int, typer.Option(min=0, help="Of the split.")]


class _CurveFirst(TyperGroup):
    """What is no other command is a store of ``curve``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = [CURVE, *args]
        return super().parse_args(ctx, args)


trees = typer.Typer(cls=_CurveFirst, no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(trees, name="trees")


@trees.callback()
def _about() -> None:
    """Every node budget of a drafter's trees at once, the best one under a price, and a tree drawn.

    markov-spec trees STORE CONTENDER is [b]trees curve[/b].
    """


@trees.command(CURVE)
def curve_command(
    store: StorePath,
    contender: Named,
    budgets: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help=f"{BUDGETS_HELP} Powers of two to 128 by default, as far as there are prices."
        ),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Measured prices of a round, CSV or JSON: [b]FILE?gpu=A100&batch=8[/b]."),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of the prompts held out; the budget is chosen on the others."),
    ] = None,
    seed: Seed = 0,
    first_start: Annotated[Literal["0", "1"], typer.Option(help=FIRST_START)] = "0",
    format: Form = None,
    out: Out = None,
) -> None:
    """Print rounds and pooled length of trees at every budget, and what is best under a price.

    With [b]--price[/b] also the expected price and speed-up, the best fixed budget, rules
    that set a budget for each round, and how far all are from the best choice from
    every start ([b]regret[/b]). A table of more than 24 budgets shows powers of two and the
    best; CSV and JSON have all, and JSON the rules, too. A budget that is chosen on the rollouts it is quoted on
    looks better than it is: [b]--holdout 0.5[/b] prints both.

    A price file has a column [b]tokens[/b] (that the target verifies, the root counted) or
    [b]nodes[/b], one of [b]seconds[/b], [b]ms[/b] or [b]price[/b], and perhaps [b]context[/b], [b]batch[/b] and
    [b]draft_ms[/b], what drafting costs a round; keys after ? select rows, or name columns.

    For example:

    markov-spec trees data/demo block --budgets 1..64

    markov-spec trees data/demo block:tree=static --budgets 1..127 --price cost.csv --holdout 0.5
    """
    form = form_of(format, out)
    refuse_overwriting(out, store, price)
    opened, start = open_store(store), int(first_start)
    if holdout is not None and price is None:
        raise typer.BadParameter("a budget is chosen by its price: give --price, too", param_hint="--holdout")
    cost = price_of(price)
    sizes = _default_sizes(cost) if budgets is None else _sizes(budgets)
    curve = budget_curve(opened, contender, budgets=sizes, price=cost, first_start=start)
    best = None
    if cost is not None:
        best = optimal_budget(
            opened, contender, budgets=sizes, price=cost, holdout=holdout or 0, seed=seed, first_start=start
        )
    notes = [LEARNED_HERE] if is_learned(Contender.parse(contender)) else []
    if form == "json":
        told: dict[str, Any] = {"store": str(store), "contender": contender, "curve": curve.to_dicts(), "notes": notes}
        if best is not None:
            told |= {"budget": best.budget, "rules": best.frame.to_dicts(), "rules_notes": list(best.notes)}
            told["held_out"] = list(best.held_out)
        show(json.dumps(told, indent=2) + "\n", out)
    elif form == "csv":
        show(curve.write_csv(), out)
    else:
        tables: list[RenderableType] = [curve_table(curve, notes)]
        if best is not None:
            tables += ["", optimum_table(best.frame, best.notes)]
        show(Group(*tables), out)


@trees.command("calibrate")
def calibrate_command(
    store: StorePath,
    contender: Named,
    budgets: Budgets = "4,16,64",
    holdout: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Share of the prompts judged; marginals are re-estimated on the rest."),
    ] = None,
    seed: Seed = 0,
    first_start: Annotated[Literal["0", "1"], typer.Option(help=FIRST_START)] = "0",
    format: Form = None,
    out: Out = None,
) -> None:
    """Print the accepted drafts that a drafter's own probabilities promise beside those of the rollouts.

    [b]promised[/b] sums the probabilities of the tree's nodes, [b]kept[/b] is what rounds accept, both
    on average over the starts of rounds. With [b]--holdout[/b] also for marginals that are
    re-estimated on the other prompts by depth, rank and confidence.

    For example:

    markov-spec trees calibrate data/demo block --holdout 0.5
    """
    form = form_of(format, out)
    refuse_overwriting(out, store)
    found = tree_calibration(
        store, contender, budgets=_sizes(budgets), holdout=holdout or 0, seed=seed, first_start=int(first_start)
    )
    if form == "json":
        told = {"by_budget": found.by_budget.to_dicts(), "by_depth": found.by_depth.to_dicts()}
        show(json.dumps({"store": str(store), "contender": contender, **told}, indent=2) + "\n", out)
    elif form == "csv":
        show(found.by_depth.write_csv(), out)
    else:
        show(calibration_table(found), out)


@trees.command("show")
def show_command(
    store: StorePath,
    contender: Named,
    rollout: Annotated[str, typer.Option(metavar="ID", help="Id of the rollout.")],
    start: Annotated[int, typer.Option(min=0, help="Tokens of the rollout before the tree.")],
    budget: Annotated[int, typer.Option(min=0, help="Nodes, the root not counted.")],
) -> None:
    """Draw the tree that a drafter proposes at one start, the accepted path marked with *.

    For example:

    markov-spec trees show data/demo block --rollout chat-01/0 --start 3 --budget 16
    """
    opened, given = open_store(store), Contender.parse(contender)
    if given.budget is not None:
        raise RequestError(f"contender {given}: found budget={given.budget}; allowed: none, as --budget tells it")
    wanted = replace(given, tree=given.tree or BestFirst.name, budget=budget)
    tree, tokens = draft_tree(opened, wanted, rollout=rollout, start=start)
    text = opened.vocab()
    show(tree.to_text(tokens=tokens, text=text) + "\n")
    count, words = tree.accepted(tokens), tokens.tolist()
    own = "the rollout ends" if count >= len(words) else f"then the target's own {words[count]}"
    if count < len(words) and words[count] in text:
        own += f" {text[words[count]]!r}"
    show(f"{len(tree)} nodes, {count} accepted, {own}\n")
    drafted = accepted_at(opened, wanted, rollout, start)
    if drafted != count:
        show(f"drawn of listed tokens, which are too few: the drafter's own tree accepts {drafted}\n")


@trees.command("keep")
def keep_command(
    store: StorePath,
    drafter: Annotated[str, typer.Argument(metavar="DRAFTER", help="One with lists or beams.")],
    budget: Annotated[int, typer.Option(min=1, help="Largest number of nodes, the root not counted.")] = 1024,
    drop: Annotated[bool, typer.Option("--drop", help="Leave its lists or beams out from then on.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace ranks that are kept already.")] = False,
) -> None:
    """Keep the ranks of best-first trees in the store, so that long lists need not be kept.

    For example:

    markov-spec trees keep my-store block --budget 1024 --drop
    """
    kept = keep_tree_ranks(store, drafter, max_budget=budget, drop=drop, overwrite=overwrite)
    show(f"{store}: {drafter}: {', '.join(kept.drafter_parts(drafter))}\n")


def _default_sizes(price: Any) -> list[int]:
    powers = [1, 2, 4, 8, 16, 32, 64, 128]
    return powers if not isinstance(price, Table) else [n for n in powers if n < price.sizes[-1]]


def _sizes(text: str) -> list[int]:
    found: list[int] = []
    for item in text.split(","):
        ends = re.fullmatch(r"(\d{1,9})(?:\.\.(\d{1,9}))?", item.strip())
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        if first > last or last > MOST:
            raise RequestError(
                f"--budgets: found {item!r}; allowed: numbers and ranges, such as 1..1024 or 8,16,32..64, to {MOST}"
            )
        found += range(first, last + 1)
    return found

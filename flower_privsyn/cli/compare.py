"""`privsyn compare`: every method on the same users, measured in the same way."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flower_privsyn.checks import check_whole
from flower_privsyn.cli.options import given, option
from flower_privsyn.cli.output import FAILED, INTERRUPTED, complain, show_table, tell
from flower_privsyn.errors import StoppedError

if TYPE_CHECKING:
    from flower_privsyn.comparison import Comparison


def compare(
    context: typer.Context,
    data: Annotated[str, option("FILE", "users: a file, or a folder of files")],
    epsilon: Annotated[list[float], option("E ...")],
    methods: Annotated[
        list[str] | None,
        option(
            "NAME ...",
            "which of the app's, beside the floors (default: all but public-mid-training, "
            "dp-prompt, expand-private)",
        ),
    ] = None,
    seeds: Annotated[int, option("N", "repetitions of every cell")] = 3,
    users: Annotated[
        int,
        option(
            "N", "users that take part, others for every seed (default: all)", show_default=False
        ),
    ] = 0,
    held_out_users: Annotated[
        int | None,
        option("N", "users of --data that never take part (default: a fifth, at most 500)"),
    ] = None,
    held_out: Annotated[str | None, option("FILE", "users that never take part")] = None,
    tuning_users: Annotated[
        int | None,
        option("N", "users that choose steps and rate alone (default: a tenth, at most 300)"),
    ] = None,
    delta: Annotated[
        float | None, option("D", "of every run (default: 1 / (n ln n), n users)")
    ] = None,
    downstream: Annotated[
        str, option("MODEL", "causal model every method is to make better")
    ] = "privsyn-tiny",
    steps: Annotated[int, option("N", "of its fine-tuning, at most")] = 2700,
    learning_rate: Annotated[float, option("X", "AdamW's; four times it is tried too")] = 5e-4,
    app: Annotated[
        str | None, option("DIR", "folder of the runs' settings (default: the package's)")
    ] = None,
    config: Annotated[
        list[str] | None,
        option("SIZE ...", "folders in its conf/; of several the first (default: cpu)"),
    ] = None,
    public_text: Annotated[
        str | None, option("FILE", "public text of all methods (default: the app's, bundled)")
    ] = None,
    settings: Annotated[
        list[str] | None,
        option(
            "[METHOD.]KEY=VALUE",
            "one setting of all runs or of one method's, a column of --data, or min-date; may be "
            "given several times",
            "--set",
        ),
    ] = None,
    sealed_users: Annotated[
        int,
        option("N", "hold out so many of the sealed tenth; stamps all output", show_default=False),
    ] = 0,
    output: Annotated[str, option("DIR", "where to write")] = "comparison",
) -> int:
    """Run methods on the same users and compare (not private).

    One downstream model is fine-tuned on what each gives, by the steps and the rate that suit it
    best, and measured on users who took no part. The figures are computed from private text without
    noise: they are for choosing a method. The same command continues what was interrupted; one for
    more methods, epsilons or seeds with the same --output adds them to the table.
    """
    from flower_privsyn.comparison import APP, Comparison, People, make_plan
    from flower_privsyn.data.load import COLUMNS
    from flower_privsyn.host.app import load_app
    from flower_privsyn.training.causal import CausalTraining

    # 0 would be passes over the text, which nobody here can set.
    check_whole("--steps", steps, ge=1)
    training = CausalTraining(learning_rate=learning_rate, max_steps=steps, train_on_eos=False)
    taken = {**COLUMNS, "min-date": ""}
    of_data = [word for word in settings or () if word.partition("=")[0] in taken]
    people = People.read(
        data,
        held_out,
        users=users,
        seeds=seeds,
        tuning_users=tuning_users,
        held_out_users=held_out_users,
        columns=given(of_data, taken, "privsyn compare"),
        sealed_users=sealed_users,
    )
    plan = make_plan(
        app=load_app(app or APP),
        people=people,
        epsilons=epsilon,
        methods=methods or (),
        seeds=seeds,
        configs=config or ["cpu"],
        delta=delta,
        downstream=downstream,
        training=training,
        public_text=public_text,
        settings=[word for word in settings or () if word not in of_data],
        folder=Path(output),
    )
    command = shlex.join(["privsyn", *context.obj])
    return _follow(Comparison(plan, Path(output), command=command))


def _follow(comparison: Comparison) -> int:
    """Run what is left of a comparison, and show what it found."""
    plan = comparison.plan
    sys.stderr.write(
        f"Comparing {len(plan.methods)} methods in {len(plan.cells())} cells, "
        f"{plan.people.number:,} users and {len(plan.people.held_out):,} held out, in "
        f"{comparison.folder}\n"
    )
    try:
        found = comparison.run(say=tell)
    except (StoppedError, KeyboardInterrupt) as error:
        sys.stderr.write("Continue with the same command; what is finished is kept.\n")
        return complain(str(error) or "interrupted", INTERRUPTED)
    return _show(comparison, found)


def _show(comparison: Comparison, document: dict[str, Any]) -> int:
    """Show what a comparison found; 0, or the status of one of whose cells some failed."""
    from flower_privsyn.report.comparison import caption, failures, tables

    print(f"[{document['stamp']}]")
    for title, headings, rows in tables(document):
        show_table(rows, headings, title=title)
    print(caption(document))
    print(f"Table: {comparison.folder / 'comparison.md'}")
    print(f"All figures: {comparison.document_file}")
    asked = {cell.to_dict()["folder"] for cell in comparison.plan.cells()}
    failed = sum(cell["folder"] in asked for cell in failures(document))
    if failed:
        return complain(
            f"{failed} of {len(asked)} cells failed; {comparison.folder / 'comparison.md'} "
            "says why, and the same command tries them again",
            FAILED,
        )
    return 0

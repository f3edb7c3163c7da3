"""`privsyn inspect`: what a run has done, what it has spent, and what its release says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

from flower_privsyn.cli.options import Json, RunDir, option
from flower_privsyn.cli.output import number, plain_line, show_json, show_table, tell
from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from flower_privsyn.report.summary import RunSummary

#: Texts that are shown of a run.
SAMPLES: Final = 5


def inspect(
    run_dir: RunDir,
    rank: Annotated[
        list[str] | None,
        option(
            "SET",
            "instead: rank sets of text by the moments that the run released: JSONL or .txt files, "
            'folders of them, run directories with synthetic text, "bundled", or a mixture such as '
            '"40% a.jsonl + 60% b.jsonl"; several after one another',
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Show what a run has done and released, or rank text by it.

    DIR is the run directory. Of a joint sketch it shows what the users write more and less often
    than public text does. An item's ratio is the exponential of the posterior mean of its
    logarithm; items are in the order of what is sure: the ratio less two standard errors. Trust is
    how far the run went by what the release says, 1 where it tells enough. All of it is made from
    the release, and costs nothing beyond its epsilon; a run without noise has none, and what it
    shows is private.

    --rank is for a run of fred, or of a method that released moments to judge its rounds: Fréchet
    distances to the users' text, from the release, any number of them, at no cost.
    """
    from flower_privsyn.report.run import said
    from flower_privsyn.report.summary import open_run

    if rank:
        return _rank(run_dir, rank, as_json=as_json)
    run = open_run(run_dir)
    if as_json:
        return show_json(run.to_dict())
    show_table(_facts(run))
    show_ranking(run.figures.get("ranking", ()))
    for title, rows in said(run.sketch):
        show_table(rows, ("text", "times as often", "from", "to"), title=title)
    return 0


def _facts(run: RunSummary) -> Iterator[tuple[str, object]]:
    """What is known of a run, with its names."""
    from flower_privsyn.report.numbers import bytes_text

    yield "run", run.path
    yield "app", run.app or "-"
    yield "strategy", run.strategy or "-"
    yield "status", run.status
    if run.error:
        yield "error", run.error
    if run.go_on:
        yield "continue", run.go_on
    for change in run.changes:
        told = [f"{key} = {one['to']!r}" for key, one in change["settings"].items()]
        told += [f"{key} {one['to'] or 'none'}" for key, one in change.get("versions", {}).items()]
        yield "changed", f"after round {change['after_round']}: {', '.join(told)}"
    yield "created", run.created
    lost, finished = len(run.rounds_lost), str(len(run.rounds_finished))
    yield "rounds", f"{finished} ({lost} of them without a release)" if lost else finished
    yield "users", "-" if run.users is None else f"{run.users:,} in the last release's round"
    if costs := run.costs:
        down, up = (bytes_text(round(costs["expected"][f"bytes_{way}"])) for way in ("down", "up"))
        yield "one user", f"{down} down, {up} up, on average"
    yield "privacy", epsilons(run) if run.releases else "nothing released"
    if run.rounds_open and run.go_on:
        begun = ", ".join(map(str, run.rounds_open))
        yield "", f"round {begun} was begun and is lost: charged as soon as the run goes on"
    yield "texts", f"{run.synthetic_texts:,} {run.texts_are}"
    if "trust" in run.figures:
        yield "trust", f"{run.figures['trust']:.2f} of 1 in the sketch that was released"
    for place, sample in enumerate(run.samples[:SAMPLES], start=1):
        yield f"sample {place}", plain_line(sample)


def _rank(run_dir: str, sets: list[str], *, as_json: bool) -> int:
    """Rank sets of text by what a run released, as many samples of each as the run would."""
    from flower_privsyn.evaluation.run import run_embedder
    from flower_privsyn.progress import Progress
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.strategies._moments import WARN_ABOVE, MomentSketch
    from flower_privsyn.strategies.fred import candidate_names, rank_sets, read_sets

    run = RunDirectory.open(run_dir)
    if not (run.path / "moments.npz").is_file():
        raise ConfigError(
            f"{run.path} holds no moments.npz: it is no run that asks for moments, such as one of "
            "fred, or it has not released them yet"
        )
    sketch = MomentSketch.load(run.path)
    embedder = run_embedder(run)
    texts = read_sets(
        candidate_names(sets),
        tokenizer=embedder.tokenizer,
        max_tokens=int(run.config["max-tokens"]),
        most=int(run.config.get("candidate-texts", 2000)),
        seed=0,
    )
    progress = Progress(tell)
    ranking = rank_sets(sketch, texts, embedder=embedder, progress=progress, seed=0)
    if as_json:
        return show_json({"ranking": ranking, **sketch.figures()})
    show_ranking(ranking)
    ratio = sketch.noise_ratio
    words = f"Noise of the covariance over what it says: {ratio:.2g}"
    if not ratio <= WARN_ABOVE:
        # The sets share the draw of the noise: their order can stand where no distance does.
        words += f", above {WARN_ABOVE:g}: read the order of the sets, not the distances"
    print(f"{words}. Nothing was spent.")
    return 0


def show_ranking(ranking: Sequence[Mapping[str, Any]]) -> None:
    """Print sets of text with their distance to what was released, the nearest first."""
    from flower_privsyn.report.run import ranked

    headings = ("set", "texts", "FreD", "± noise", "of the means", "nearest in")
    rows = [(plain_line(name), *figures) for name, *figures in ranked(ranking)]
    if rows:
        show_table(rows, headings, title="Nearest to the users' text first")


def epsilons(run: RunSummary) -> str:
    """The epsilons of a run in words.

    The two never go without each other: which one holds depends on who looks.
    """
    releases = f"{run.releases} release{'s' * (run.releases != 1)}"
    if run.epsilon_release is None:
        return f"Not private: {releases} without sufficient noise"
    return (
        f"epsilon_release       = {run.epsilon_release:.4g}"
        " (towards everyone who does not know who took part)\n"
        f"epsilon_known_cohorts = {number(run.epsilon_known_cohorts)}"
        " (towards one who does)\n"
        f"delta = {number(run.delta)}, {releases}{_until(run)}"
    )


def _until(run: RunSummary) -> str:
    """What the epsilons are of, where that is not what the releases were charged with."""
    if run.ended_early:
        return (
            "; it ended early, which may depend on what was released: the epsilons are those of "
            "all rounds that were planned"
        )
    spent, budget = run.epsilon_release, run.epsilon_budget
    if run.status == "finished" or spent is None or budget is None or spent >= budget:
        return ""
    return (
        f" so far; whoever ends it here by what was released has spent the budget, epsilon = "
        f"{number(budget)}"
    )

"""`privsyn fred`: which text is nearest to what a run released of its users' text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

from flower_privsyn.cli.options import Json, RunDir, Seed, option
from flower_privsyn.errors import ConfigError

if TYPE_CHECKING:
    from flower_privsyn.strategies.parts.moments import MomentSketch, Ranked

_Candidates = Annotated[
    list[str] | None,
    option(
        "SET",
        "what is compared: JSONL or .txt files, folders of them, run directories with synthetic "
        'text, "bundled", or a mixture such as "40% a.jsonl + 60% b.jsonl"; several after one '
        "another",
    ),
]


def fred(
    run_dir: RunDir,
    candidates: _Candidates = None,
    texts: Annotated[
        int | None, option("N", "samples of each set; 0 for all (default: the run's)")
    ] = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> int:
    """Rank sets of public or synthetic text by their Fréchet distance to the users' text.

    DIR is the directory of a run of fred, or of a method that released moments to judge its rounds.
    The distances are made from the release, any number of them, and cost nothing.
    """
    from flower_privsyn.checks import check_whole
    from flower_privsyn.evaluation.run import run_embedder
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.strategies.parts.moments import MomentSketch
    from flower_privsyn.strategies.parts.ranking_of_text import rank_sets

    if not candidates:
        raise ConfigError("--candidates must name at least one set of text")
    run = RunDirectory.open(run_dir)
    if not (run.path / "moments.npz").is_file():
        raise ConfigError(
            f"{run.path} holds no moments.npz: it is no run that asks for moments, such as one of "
            "fred, or it has not released them yet"
        )
    sketch = MomentSketch.load(run.path)
    most = int(run.config.get("candidate-texts", 2000)) if texts is None else texts
    check_whole("--texts", most, ge=0)
    with follower() as follow:
        found = rank_sets(
            sketch,
            run.config,
            candidates,
            most=most,
            seed=seed,
            progress=ShownProgress(follow),
            embedder=run_embedder(run),
        )
    if as_json:
        said = {"ranking": [one.to_dict() for one in found], **sketch.figures()}
        print(json.dumps(said, ensure_ascii=False, indent=2))
    else:
        _print(found, sketch)
    return 0


def _print(found: list[Ranked], sketch: MomentSketch) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # plain: a path may look like markup

    from flower_privsyn.strategies.parts.moments import WARN_ABOVE

    table = Table(title="Nearest first", title_justify="left", pad_edge=False)
    table.add_column("set")
    for heading in ("texts", "FreD", "± noise", "of the means", "nearest in"):
        table.add_column(heading, justify="right")
    for one in found:
        figures = (f"{value:.4g}" for value in (one.fred, one.error, one.mean_part))
        table.add_row(Text(one.name), f"{one.texts:,}", *figures, f"{one.nearest:.0%}")
    console = Console()
    console.print(table)
    ratio = sketch.noise_ratio
    told = f"Noise of the covariance over what it says: {ratio:.2g}"
    if not ratio <= WARN_ABOVE:
        # The sets share the draw of the noise: their order can stand where no distance does.
        told += f", above {WARN_ABOVE:g}: read the order of the sets, not the distances"
    console.print(f"{told}. Nothing was spent.", markup=False, highlight=False)

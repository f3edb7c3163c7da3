"""`privsyn evaluate`: a run measured on private text that took no part in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from flower_privsyn.cli.options import Columns, Json, RunDir, Seed, columns_of, option
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import expanded

if TYPE_CHECKING:
    from flower_privsyn.data import Users
    from flower_privsyn.run import RunDirectory


def evaluate(
    run_dir: RunDir,
    held_out: Annotated[str | None, option("FILE", "users who took no part in the run")] = None,
    users: Annotated[
        str | None, option("FILE", "the run's own data, where held-out-fraction was set")
    ] = None,
    private: Annotated[
        str | None, option("FILE", "users who took part, to look for copies of their text")
    ] = None,
    downstream: Annotated[
        str | None,
        option(
            "MODEL",
            "causal model to fine-tune on the synthetic text (default: that which the run made, "
            "else privsyn-tiny)",
        ),
    ] = None,
    steps: Annotated[int | None, option("N", "of the fine-tuning")] = None,
    encoder: Annotated[
        str | None,
        option(
            "MODEL",
            "model to fine-tune as a classifier of labelled synthetic text, such as roberta-base",
        ),
    ] = None,
    output: Annotated[str | None, option("DIR", "where to write (default: DIR.evaluation)")] = None,
    seed: Seed = 0,
    columns: Columns = "",
    as_json: Json = False,
) -> int:
    """A model before and after, distances to held-out private text, copies, classifiers.

    DIR is the run directory. The figures are computed from private text without noise: they are for
    choosing between methods in research and must not be published beside a private result.
    """
    from flower_privsyn.cli.terminal import follower
    from flower_privsyn.evaluation.run import evaluate_run
    from flower_privsyn.evaluation.show import rows, show
    from flower_privsyn.report import write_run_page
    from flower_privsyn.run import RunDirectory
    from flower_privsyn.run.progress import ShownProgress
    from flower_privsyn.training.causal import CausalTraining

    run = RunDirectory.open(run_dir)
    taking_part, others = _people(run, held_out, users, private, columns_of(columns))
    folder = _folder(run, output)
    training = CausalTraining(max_steps=steps or 0, learn_ends=False)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with follower() as follow:
        record = evaluate_run(
            run,
            others,
            private=taking_part,
            downstream=downstream,
            training=training,
            work=folder,
            encoder=encoder,
            seed=seed,
            progress=ShownProgress(follow),
        )
    record.write(folder / "evaluation.json")
    write_run_page(run, folder / "report.html", quality=rows(record))
    if as_json:
        print(record.to_json())
        return 0
    show(record)
    print(f"All figures: {folder / 'evaluation.json'}\nPage: {folder / 'report.html'}")
    return 0


def _people(
    run: RunDirectory,
    held_out: str | None,
    users: str | None,
    private: str | None,
    columns: dict[str, str],
) -> tuple[Users | None, Users]:
    """Users who took part, where they are known, and users who did not."""
    from flower_privsyn.evaluation.run import own_users, split_users

    def read(file: str) -> Users:
        return own_users(run.config, file, columns)

    if users is not None and held_out is None:
        if private is not None:
            raise ConfigError("--private goes with --held-out: --users holds both.")
        return split_users(run, read(users))
    if held_out is not None and users is None:
        others = read(held_out)
        return None if private is None else read(private), others
    raise ConfigError(
        "Give either --held-out, a file of users who took no part, or --users, the run's own "
        "data, of which it held some users out."
    )


def _folder(run: RunDirectory, output: str | None) -> Path:
    folder = run.path.with_name(f"{run.path.name}.evaluation")
    if output is not None:
        folder = expanded(output).absolute()
    if folder.resolve().is_relative_to(run.path.resolve()):
        raise ConfigError(
            f"The output {folder} lies in the run directory, whose readers are promised the run's "
            "epsilon; an evaluation on private text must lie elsewhere."
        )
    return folder

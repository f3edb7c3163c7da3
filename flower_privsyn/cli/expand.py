"""`privsyn expand`: more text from a finished run, free of privacy cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from flower_privsyn.cli.options import RunDir, Seed, option
from flower_privsyn.cli.output import FAILED
from flower_privsyn.cli.signals import Stopped, ended_by_signals

if TYPE_CHECKING:
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.strategies.more_text import MoreText, Written

# How texts are written: where it is not said, as the run says.
Generator = Annotated[
    str | None,
    option(
        "NAME",
        "language model that writes: a name, a folder, gguf:FILE or http://host:port/v1#model "
        "(default: the run's)",
    ),
]
KeyVariable = Annotated[
    str | None,
    option("VARIABLE", "environment variable with the key of a server (default: the run's)"),
]
Timeout = Annotated[
    float | None, option("SECONDS", "to wait for an answer of a server (default: the run's)")
]
Retries = Annotated[
    int | None, option("N", "how often a server is asked again (default: the run's)")
]
Concurrency = Annotated[
    int | None, option("N", "requests at once at a server (default: the run's)")
]
Interface = Annotated[
    str | None,
    option("HOW", "completions, or chat: messages that it answers (default: the run's)"),
]
Parameters = Annotated[
    str | None, option("JSON", "sent to a server with every request (default: the run's)")
]


def expand(
    run_dir: RunDir,
    samples: Annotated[int, option("N", "texts in the file in the end")] = 1000,
    generator: Generator = None,
    generator_api_key_env: KeyVariable = None,
    generator_timeout: Timeout = None,
    generator_retries: Retries = None,
    generator_concurrency: Concurrency = None,
    generator_interface: Interface = None,
    generator_parameters: Parameters = None,
    prompt: Annotated[
        str | None, option("NAME", "a bundled prompt or a JSON file (default: the run's)")
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("N", "tokens per text (default: the run's)")
    ] = None,
    temperature: Annotated[float | None, option("T", "of sampling (default: the run's)")] = None,
    seed: Seed = 0,
    output: Annotated[
        str | None,
        option("FILE", "where to write (default: DIR/expanded-<generator>-<seed>.jsonl)"),
    ] = None,
) -> int:
    """Write more text after what a finished run released; nothing is spent.

    DIR is the run directory. Its survivors, or where it keeps none its synthetic texts, stand in
    the prompts. The texts go into a file of their own; the same command goes on with that file.
    Where texts have classes, every prompt and its text are of one class, and there are as many of
    each as the released votes say. A run of CTCL writes by its topics, with the generator it has
    trained.
    """
    from flower_privsyn.checks import check_whole
    from flower_privsyn.files import expanded
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.models import stamped
    from flower_privsyn.runs import RunDirectory
    from flower_privsyn.strategies.more_text import MoreText, write_more

    check_whole("--samples", samples, ge=1)
    check_whole("--seed", seed, ge=0, le=2**64 - 1)
    run = RunDirectory.open(run_dir)
    settings = MoreText.of(
        run,
        {
            "generator": generator,
            "generator_api_key_env": generator_api_key_env,
            "generator_timeout": generator_timeout,
            "generator_retries": generator_retries,
            "generator_concurrency": generator_concurrency,
            "generator_interface": generator_interface,
            "generator_parameters": generator_parameters,
            "prompt": prompt,
            "max_new_tokens": max_new_tokens,
            "temperature": temperature,
        },
    )
    if generator is not None:  # the run's own has the stamp of the run
        stamped.refuse("--generator", generator)
    try:
        with ended_by_signals(), follower() as follow:
            written = write_more(
                run,
                settings,
                num_samples=samples,
                seed=seed,
                output=None if output is None else expanded(output).absolute(),
                progress=ShownProgress(follow),
            )
    except (KeyboardInterrupt, Stopped):
        sys.stderr.write("What was written is kept; the same command goes on with it.\n")
        raise
    return _said(run, settings, written, samples)


def _said(run: RunDirectory, settings: MoreText, written: Written, samples: int) -> int:
    """Print what was written and what holds for it; the exit status."""
    from flower_privsyn.cli.inspect import epsilons, inspect_run

    how = "" if written.kind == "topics" else f" with the prompt {settings.prompt}"
    print(
        f"Texts: {written.path} ({written.texts:,}), by {settings.generator}{how}, from "
        f"{written.seeds:,} {written.kind}"
    )
    if written.by_class is not None:
        print("Of each class: " + ", ".join(f"{k} {n:,}" for k, n in written.by_class.items()))
    facts = inspect_run(run.path)
    if facts["releases"]:
        print(f"Nothing was spent. What holds for the run holds for them:\n{epsilons(facts)}")
    if written.texts < samples:
        sys.stderr.write(
            f"Only {written.texts:,} of {samples:,} texts could be kept; dropped: "
            + ", ".join(f"{count:,} {reason}" for reason, count in written.dropped.items() if count)
            + "\n"
        )
        return FAILED
    return 0

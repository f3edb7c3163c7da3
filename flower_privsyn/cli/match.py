"""`privsyn match`: public text that a private model finds likely, with or against another."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from flower_privsyn.cli.destination import file_to_write
from flower_privsyn.cli.options import option
from flower_privsyn.cli.signals import Stopped, ended_by_signals
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import located, replacing, user_path

if TYPE_CHECKING:
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.training.distribution_matching import Matched
    from flower_privsyn.training.selection import Float64Array


def match(
    text: Annotated[
        str, option("CORPUS", "public: a file, a folder, bundled, or a data set by name")
    ],
    private: Annotated[str, option("NAME", "model that was trained under differential privacy")],
    share: Annotated[float, option("Q", "of the corpus's tokens that is kept, as a fraction")],
    output: Annotated[Path, option("FILE", "JSON lines to become the kept rows, best first")],
    public: Annotated[
        str | None,
        option("NAME", "public model with the same tokens (default: none, the private one alone)"),
    ] = None,
    against: Annotated[
        str | None,
        option("NAME", "instead: what --private was trained from, whose scores are subtracted"),
    ] = None,
    max_tokens: Annotated[int, option("N", "tokens of a row; a longer text is several")] = 64,
    least_row_tokens: Annotated[int, option("N", "rows with fewer are not kept")] = 1,
    least_rows: Annotated[int, option("N", "fewer kept rows are refused: a batch")] = 32,
    scores: Annotated[
        Path | None, option("DIR", "where scores stay, a model each, for other choices")
    ] = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> int:
    """Choose the public text that a private model finds likely, with or against a public one.

    Rows are ranked by log p_private(x) + log p_public(x), or with --against by log p_private(x) -
    log p_against(x), and a share of the corpus's tokens is kept. It costs no privacy where the
    private model's training is paid for, as of a run's models/final; with a model that saw private
    text without noise there is no guarantee whatever. The command goes on with what was
    interrupted.
    """
    import numpy as np

    from flower_privsyn.checks import check_whole
    from flower_privsyn.data.public_rows import PublicRows
    from flower_privsyn.embedding import load_tokenizer
    from flower_privsyn.training.distribution_matching import TokenShare, keep_share

    rule = TokenShare(share=share, least_rows=least_rows)
    check_whole("--max-tokens", max_tokens, ge=1)
    check_whole("--least-row-tokens", least_row_tokens, ge=1, le=max_tokens)
    file = file_to_write(output, corpus=text)
    models = _models(private, public=public, against=against)
    rows = PublicRows.of(
        text,
        tokenizer=load_tokenizer(models["private"])[0],
        max_tokens=max_tokens,
        setting="--text",
    )
    folder = file.with_name(file.name + ".scores") if scores is None else user_path(scores)
    try:
        found = _scores(rows, models, folder=folder, device=device)
    except (KeyboardInterrupt, Stopped):
        sys.stderr.write("What was scored is kept; the same command goes on with it.\n")
        raise
    liked = np.sum([-one if name == "against" else one for name, one in found.items()], axis=0)
    wanted = np.where(rows.lengths < least_row_tokens, -np.inf, liked)
    kept = keep_share(rows, wanted, rule)
    _write(file, rows, kept, found)
    if scores is None:
        shutil.rmtree(folder)
    print(
        f"Chosen: {output}, {len(kept.indices):,} of {len(rows):,} rows with {kept.tokens:,} of "
        f"{kept.all_tokens:,} tokens, scores {kept.scores[0]:.4g} to {kept.scores[-1]:.4g}; "
        f"{kept.duplicates:,} duplicates passed over"
    )
    return 0


def _models(private: str, *, public: str | None, against: str | None) -> dict[str, str]:
    """The models that score rows, by what they are, once they have the same tokens."""
    from flower_privsyn.training.distillation import check_same_tokens

    if public is not None and against is not None:
        raise ConfigError("give either --public or --against")
    models = {"private": located(private)}
    for name, model in (("public", public), ("against", against)):
        if model is not None:
            models[name] = located(model)
            check_same_tokens(models["private"], models[name], setting=f"--{name}")
    return models


def _scores(
    rows: PublicRows,
    models: dict[str, str],
    *,
    folder: Path,
    device: str,
) -> dict[str, Float64Array]:
    """The scores of all rows by each model, (n,) each; a folder for each model and way."""
    import hashlib

    import numpy as np

    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.training.distribution_matching import LanguageModelScorer, stored_scores

    found = {}
    with ended_by_signals(), follower() as follow:
        progress = ShownProgress(follow)
        for name, model in models.items():
            scorer = LanguageModelScorer(model=model, device=None if device == "auto" else device)
            fingerprint = scorer.fingerprint()
            known = json.dumps([fingerprint, str(rows.folder.name)], sort_keys=True).encode()
            place = folder / hashlib.blake2b(known, digest_size=8).hexdigest()
            with progress.stage(f"The {name} model reads", len(rows)) as stage:
                found[name] = np.array(
                    stored_scores(
                        rows,
                        scorer,
                        folder=place,
                        fingerprint=fingerprint,
                        progress=stage.reach,
                    )
                )
    return found


def _write(file: Path, rows: PublicRows, kept: Matched, scores: dict[str, Float64Array]) -> None:
    """Write the kept rows: the text, its score, what each model says, and its place."""
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as opened:
        for index, score in zip(kept.indices.tolist(), kept.scores.tolist(), strict=True):
            line = {
                "text": rows.text_of(index),
                "score": score,
                **{name: float(values[index]) for name, values in scores.items()},
                "row": index,
            }
            opened.write(json.dumps(line, ensure_ascii=False) + "\n")

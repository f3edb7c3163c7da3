"""`privsyn paraphrase`: an owner's text in other words, under local differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flower_privsyn.checks import check_number, check_whole
from flower_privsyn.cli.destination import file_to_write
from flower_privsyn.cli.options import option
from flower_privsyn.cli.signals import ended_by_signals
from flower_privsyn.errors import ConfigError
from flower_privsyn.node.paraphrase import TEMPLATE

_Name = Annotated[str | None, option("NAME")]
_Refused = Annotated[str | None, typer.Option(hidden=True)]

#: Why none of these can be had: what a token may be, or when a text ends, would depend on the text.
_REFUSED = (
    "{name} cannot be set: the guarantee needs every token of the vocabulary to have its chance in "
    "every draw, and all {tokens} tokens to be charged wherever a text ends."
)


def paraphrase(
    data: Annotated[str, option("FILE", "the owner's documents: a file, a folder or a data set")],
    output: Annotated[Path, option("FILE", "JSON lines to write; its ledger comes beside it")],
    epsilon_per_document: Annotated[
        float | None, option("E", "pure, local; sets the temperature")
    ] = None,
    temperature: Annotated[float | None, option("T", "in place of an epsilon")] = None,
    model: Annotated[str, option("MODEL", "causal language model")] = "privsyn-lm",
    max_document_tokens: Annotated[int, option("N", "read of a document")] = 256,
    max_new_tokens: Annotated[int, option("N", "drawn and charged for every document")] = 64,
    clip_low: Annotated[
        float | None, option("B1", "lower bound of logits (default: measured on public text)")
    ] = None,
    clip_high: Annotated[float | None, option("B2", "upper bound of logits")] = None,
    template: Annotated[
        str | None, option("TEXT", 'what the model continues; "{text}" is the document')
    ] = None,
    batch_size: Annotated[int, option("N", "documents at a time")] = 32,
    client_column: _Name = None,
    text_column: _Name = None,
    top_k: _Refused = None,
    top_p: _Refused = None,
    min_p: _Refused = None,
    typical_p: _Refused = None,
    num_beams: _Refused = None,
    repetition_penalty: _Refused = None,
    frequency_penalty: _Refused = None,
    presence_penalty: _Refused = None,
    min_new_tokens: _Refused = None,
    stop: _Refused = None,
) -> int:
    """Write each document of a file in other words, on this machine, for an epsilon of its own.

    The epsilon is pure, local and per document, a user's documents add up, and it does not compare
    with the epsilon of a run, which covers a sum over users. The command continues what was
    interrupted.
    """
    refused = {
        "--top-k": top_k,
        "--top-p": top_p,
        "--min-p": min_p,
        "--typical-p": typical_p,
        "--num-beams": num_beams,
        "--repetition-penalty": repetition_penalty,
        "--frequency-penalty": frequency_penalty,
        "--presence-penalty": presence_penalty,
        "--min-new-tokens": min_new_tokens,
        "--stop": stop,
    }
    for name, value in refused.items():
        if value is not None:
            raise ConfigError(_REFUSED.format(name=name, tokens=max_new_tokens))
    if (epsilon_per_document is None) == (temperature is None):
        raise ConfigError("give either --epsilon-per-document or --temperature")
    if (clip_low is None) != (clip_high is None):
        raise ConfigError("--clip-low and --clip-high go together")
    _check_numbers(epsilon_per_document=epsilon_per_document, temperature=temperature)
    _check_counts(max_document_tokens, max_new_tokens, batch_size)
    bounds = None if clip_low is None or clip_high is None else (clip_low, clip_high)
    places = {"client-column": client_column or "", "text-column": text_column or ""}
    return _paraphrase(
        {"data": data, **places},
        file_to_write(output, corpus=data, what="--data"),
        price=(epsilon_per_document, temperature),
        bounds=bounds,
        loaded={
            "model": model,
            "template": template or TEMPLATE,
            "max_document_tokens": max_document_tokens,
            "max_new_tokens": max_new_tokens,
        },
        batch_size=batch_size,
    )


def _check_numbers(**numbers: float | None) -> None:
    """Refuse numbers that are no price, by the name and the value that were given."""
    for name, number in numbers.items():
        if number is not None:
            check_number(f"--{name.replace('_', '-')}", number, gt=0)


def _check_counts(max_document_tokens: int, max_new_tokens: int, batch_size: int) -> None:
    check_whole("--max-document-tokens", max_document_tokens, ge=1)
    check_whole("--max-new-tokens", max_new_tokens, ge=1)
    check_whole("--batch-size", batch_size, ge=1)


def _paraphrase(
    places: dict[str, str],
    output: Path,
    *,
    price: tuple[float | None, float | None],
    bounds: tuple[float, float] | None,
    loaded: dict[str, Any],
    batch_size: int,
) -> int:
    from flower_privsyn.data import public_texts
    from flower_privsyn.data.load import load_configured
    from flower_privsyn.embedding import load_tokenizer
    from flower_privsyn.host.progress import ShownProgress
    from flower_privsyn.host.terminal import follower
    from flower_privsyn.node.paraphrase import Paraphraser, paraphrase_file
    from flower_privsyn.privacy.token_choice import TokenChoice

    users = load_configured(places, strict=True)
    documents = [
        (users.user_ids[owner], text)
        for owner, text in zip(users.owners.tolist(), users.texts, strict=True)
    ]
    paraphraser = Paraphraser(**loaded, batch_size=batch_size)
    if bounds is None:
        public = public_texts(tokenizer=load_tokenizer("privsyn-lm")[0], max_tokens=64)
        bounds = paraphraser.logit_bounds(public)
    low, high = bounds
    epsilon, temperature = price
    size = paraphraser.vocabulary
    if temperature is not None:
        choice = TokenChoice(low=low, high=high, temperature=temperature, vocabulary=size)
    else:
        per_token = (epsilon or 0.0) / loaded["max_new_tokens"]
        choice = TokenChoice.of_epsilon(per_token, low=low, high=high, vocabulary=size)
    price_of_each = paraphraser.settings(choice).epsilon_per_document
    print(
        f"Logits from {low:.4g} to {high:.4g} over a temperature of {choice.temperature:.4g}: "
        f"epsilon {choice.epsilon:.4g} a token, {price_of_each:.6g} a document "
        "(pure, local)"
    )
    with ended_by_signals(), follower() as follow:
        progress = ShownProgress(follow)
        with progress.stage("Paraphrase", len(documents)) as stage:
            found = paraphrase_file(
                documents, output, paraphraser=paraphraser, choice=choice, progress=stage.update
            )
    print(
        f"{found.documents:,} documents of {len(users):,} users: epsilon "
        f"{found.epsilon_per_document:.6g} a document, {found.epsilon_per_user:.6g} for the user "
        f"with most, {found.most_of_a_user}; pure and local, not to be compared with a run's"
    )
    if found.lost:
        print(f"{found.lost} of them are charged and not written: the process was killed then")
    print(f"Paraphrases: {output}")
    return 0

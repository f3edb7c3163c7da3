"""`privsyn model`: an on-device language model with random weights, to train."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flower_privsyn.cli.options import Seed, option
from flower_privsyn.errors import ConfigError
from flower_privsyn.files import user_path
from flower_privsyn.models.on_device import Architecture

_COUNTED = ("words", "subwords")


def model(
    architecture: Annotated[Architecture, typer.Option(help="of its layers")],
    output: Annotated[Path, option("DIR", "folder to become the model; new or empty")],
    tokenizer: Annotated[
        str, option("NAME", "words or subwords of --text, or the tokens of a model (its teacher's)")
    ] = "privsyn-lm",
    vocabulary: Annotated[
        int | None, option("N", "tokens besides four special ones, for words and subwords")
    ] = None,
    text: Annotated[
        str, option("FILE|DIR", "public text whose words are counted, or bundled")
    ] = "bundled",
    embedding_size: Annotated[int, option("N", "width of embeddings, and of a transformer")] = 96,
    hidden_size: Annotated[int, option("N", "LSTM units, or feed-forward width")] = 670,
    layers: Annotated[int, option("N")] = 1,
    heads: Annotated[int, option("N", "of a transformer")] = 8,
    tied: Annotated[bool, typer.Option("--tied", help="embeddings are the output layer")] = False,
    max_tokens: Annotated[int, option("N", "tokens of a text besides the beginning")] = 20,
    seed: Seed = 0,
) -> int:
    """Write an on-device language model with random weights, to be trained.

    The defaults are the one-layer models of Wang et al. (NAACL 2024) with the tokens of
    privsyn-lm, so that it can be their teacher. The folder is a model for every setting and command
    that takes one; privsyn distil trains it on public text. Words are counted in public text alone:
    a vocabulary that is taken from users' text says what they write.
    """
    from flower_privsyn.checks import check_whole
    from flower_privsyn.models.on_device import OnDeviceModel, write_model

    shape = OnDeviceModel(
        architecture=architecture,
        embedding_size=embedding_size,
        hidden_size=hidden_size,
        num_layers=layers,
        num_heads=heads,
        tied=tied,
        max_tokens=max_tokens,
    )
    check_whole("--seed", seed, ge=0, le=2**63 - 1)
    folder = user_path(output)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output must be a folder that is new or empty, got {output}")
    if (tokenizer in _COUNTED) != (vocabulary is not None):
        raise ConfigError(
            f"--tokenizer {tokenizer} needs --vocabulary"
            if vocabulary is None
            else f"--vocabulary is for --tokenizer words and subwords: {tokenizer} has its own"
        )
    made = _tokenizer(tokenizer, vocabulary, text, max_tokens + 1)
    parameters = write_model(folder, shape, made, seed=seed)
    print(f"Model: {output}, {architecture}, {parameters:,} parameters, {len(made):,} tokens")
    return 0


def _tokenizer(name: str, vocabulary: int | None, text: str, max_tokens: int) -> Any:
    """The tokenizer of a model, or one that is made from public text."""
    from flower_privsyn.data.public_text import public_documents
    from flower_privsyn.models.pretrained import load_tokenizer
    from flower_privsyn.models.vocabulary import make_tokenizer

    if vocabulary is None:
        found = load_tokenizer(name)
        if found.eos_token_id is None:
            raise ConfigError(f"--tokenizer {name} has no token that ends a text")
        found.model_max_length = max_tokens
        return found
    return make_tokenizer(
        name,  # type: ignore[arg-type]
        public_documents(text, setting="--text"),
        vocabulary=vocabulary,
        max_tokens=max_tokens,
    )

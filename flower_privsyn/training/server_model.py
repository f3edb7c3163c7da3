"""The model at a server whose nodes train it: loaded once, with those that rounds go on from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flower_privsyn.errors import ConfigError, RunDirectoryError
from flower_privsyn.models.trainable import TrainableModel
from flower_privsyn.training.local import LocalModel


class ServerModel:
    """A model, and the models whose values stand where nodes train nothing of it.

    Args:
        trained: the model, and what of it is trained.
        initial: the setting `initial-model`: the model that the rounds start from; "" for the model
            itself.

    Attributes:
        model: as nodes load it.
        start: that the rounds start from.

    Raises:
        ConfigError: `initial` is of another architecture or other tokens.
        ModelError: a model is missing or unusable.
    """

    def __init__(self, trained: TrainableModel, *, initial: str) -> None:
        self._trained = trained
        self.model = self._loaded(trained.name)
        self.start = start = self._loaded(initial) if initial else self.model
        tokens, others = (one.tokenizer.backend_tokenizer.to_str() for one in (self.model, start))
        same = start.shapes == self.model.shapes and len(start.base) == len(self.model.base)
        if tokens != others or not same:
            raise ConfigError(
                f'initial-model = "{initial}" is of another architecture or other tokens than '
                f'model = "{trained.name}": it must be the same model, trained further'
            )
        self._bases = {"": start}

    def _loaded(self, name: str) -> LocalModel:
        return LocalModel(replace(self._trained, name=name))

    def check(self, *, max_tokens: int, conditioned: bool) -> None:
        """Refuse what the model cannot be asked.

        Args:
            max_tokens: of a sample.
            conditioned: whether it is trained on documents after conditions.

        Raises:
            ConfigError: it takes fewer tokens, or has an encoder and nothing for it to read.
        """
        name, most = self._trained.name, self.model.max_tokens
        if self.model.encoder_decoder and not conditioned:
            raise ConfigError(
                f"model = {name!r} is an encoder-decoder, of which only CTCL has something for the "
                "encoder to read: name a causal language model"
            )
        if most is not None and max_tokens > most:
            raise ConfigError(
                f"max-tokens = {max_tokens} is more than the {most} tokens that model {name!r} "
                "takes"
            )

    def base(self, name: str, *, home: Path) -> LocalModel:
        """The model whose values stand where nodes train nothing.

        Args:
            name: its folder below the run directory; "" for what the rounds start from.
            home: the run directory.

        Raises:
            RunDirectoryError: the folder is elsewhere.
        """
        if name not in self._bases:
            folder, home = (home / name).resolve(), home.resolve()
            if home not in folder.parents:  # of a run that somebody handed over
                raise RunDirectoryError(
                    f"{home} goes on from the model in {folder}, which is not one of its own"
                )
            self._bases[name] = self._loaded(str(folder))
        return self._bases[name]

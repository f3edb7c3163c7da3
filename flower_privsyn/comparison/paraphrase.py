"""Text told in other words under local differential privacy, on the machine of its owner.

Utpala, Hooker, Chen: "Locally Differentially Private Document Generation Using Zero Shot Prompting"
(DP-Prompt, Findings of EMNLP 2023): a language model is asked for a paraphrase and every token of
it is drawn by clipped logits over a temperature (`flower_privsyn.privacy.token_choice`). What
comes out is the text, not a sum over users: no server and no other user is needed, and the price is
another one. It is pure, local and per document, and does not compare with the epsilon of a round.

This is no part of a run: no node does it because a server asks.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from flower_privsyn.checks import check_whole
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.models.text_batches import text_batches
from flower_privsyn.privacy.randomness import RandomSource, SecureRandom
from flower_privsyn.privacy.token_choice import TokenChoice

#: Ours; the paper's "Document : {text} Paraphrase of the document :" with line breaks.
TEMPLATE: Final = "Document: {text}\nParaphrase of the document:"

#: Public texts that the bounds of the logits are measured on.
_MEASURED: Final = 32


@dataclass(frozen=True, kw_only=True)
class Paraphrasing:
    """What every paraphrase of a file is made with; public.

    Formal guarantee:
        `max_new_tokens` * `choice.epsilon` per document, pure and local: whatever is written in
        place of a document, so long as it can be read and is not blank, no paraphrase becomes
        likelier by more than that factor's exponential. Which rows hold a document is not hidden.
        All tokens are charged, also where the text ends before. A user's documents add up.

    Attributes:
        model: name or folder.
        template: what the model is to continue; "{text}" stands for the document.
        max_document_tokens: that are read of a document, the first ones.
        max_new_tokens: n, drawn and charged for every document.
        choice: how each is drawn.
    """

    model: str
    template: str
    max_document_tokens: int
    max_new_tokens: int
    choice: TokenChoice

    def __post_init__(self) -> None:
        """Check every value."""
        check_whole("max-document-tokens", self.max_document_tokens, ge=1)
        check_whole("max-new-tokens", self.max_new_tokens, ge=1)
        check_template(self.template)

    @property
    def epsilon_per_document(self) -> float:
        """What a paraphrase costs."""
        return self.max_new_tokens * self.choice.epsilon

    def to_dict(self) -> dict[str, Any]:
        """As the ledger states it."""
        return {**asdict(self), "epsilon_per_document": self.epsilon_per_document}


def check_template(template: str) -> None:
    """Refuse words that do not say where the document stands."""
    if template.count("{text}") != 1:
        raise ConfigError(f'the template must hold "{{text}}" once, got {template!r}')


class Paraphraser:
    """A causal language model that tells documents in other words.

    All documents go through the model in one shape, `batch_size` rows of one length, the rows that
    are missing filled up: in another shape the last digits of a document's logits would be others,
    and its paraphrase would say how long its neighbours are. No document fills its row: a model
    leaves out a mask without a zero, and computes the whole batch in another way.

    Args:
        model: a bundled short name, a folder or a hub name.
        template: as of `Paraphrasing`.
        max_document_tokens: as of `Paraphrasing`.
        max_new_tokens: as of `Paraphrasing`.
        batch_size: documents at a time.

    Raises:
        ModelError: the model cannot be found or is no causal language model.
        MissingExtraError: PyTorch or Transformers is not installed.
        ConfigError: the model's context does not hold document, template and new tokens.
    """

    def __init__(
        self,
        model: str,
        *,
        template: str = TEMPLATE,
        max_document_tokens: int = 256,
        max_new_tokens: int = 64,
        batch_size: int = 32,
    ) -> None:
        from flower_privsyn.models.pretrained import context_of, load_pretrained

        check_template(template)
        self.name = model
        self._template = template
        self._batch_size = check_whole("batch-size", batch_size, ge=1)
        self._model, self._tokenizer = load_pretrained(
            model, kind="causal", dtype="auto", device=None
        )
        ends = self._model.generation_config.eos_token_id
        self._ends = {ends} if isinstance(ends, int) else set(ends or ())
        self._most, self._new = max_document_tokens, max_new_tokens
        before, after = template.split("{text}")
        begin = self._tokenizer.bos_token_id
        self._head: list[int] = [] if begin is None else [begin]
        self._head += self._tokenizer(before, add_special_tokens=False)["input_ids"]
        self._tail: list[int] = self._tokenizer(after, add_special_tokens=False)["input_ids"]
        begun = len(self._head) + len(self._tail)
        self._width = begun + max_document_tokens + 1
        positions = context_of(self._model)
        if positions is not None and positions < self._width + max_new_tokens:
            raise ConfigError(
                f"max-document-tokens = {max_document_tokens}, max-new-tokens = {max_new_tokens} "
                f"and the template's {begun} tokens, and one before them, are more than "
                f"the {positions} positions of model {model!r}"
            )

    @property
    def vocabulary(self) -> int:
        """Logits of the model: all of them take part in every draw."""
        return int(self._model.get_output_embeddings().weight.shape[0])

    def logit_bounds(self, public: Sequence[str]) -> tuple[float, float]:
        """Bounds that lose little: the mean logit, and the mean of a position's largest one.

        Args:
            public: texts of nobody; the first 32 are looked at.
        """
        import torch

        means, largest = [], []
        for text in public[:_MEASURED]:
            rows = self._rows([text])
            with torch.inference_mode():
                logits = self._model(torch.tensor(rows, device=self._model.device)).logits[0]
            means.append(float(logits.float().mean()))
            largest.append(float(logits.float().max(dim=-1).values.mean()))
        return float(np.mean(means)), float(np.mean(largest))

    def settings(self, choice: TokenChoice) -> Paraphrasing:
        """What its paraphrases are made with, and so what they cost.

        Args:
            choice: among all tokens of the model.
        """
        if choice.vocabulary != self.vocabulary:
            raise ValueError(f"the choice must be among {self.vocabulary} tokens")
        return Paraphrasing(
            model=self.name,
            template=self._template,
            max_document_tokens=self._most,
            max_new_tokens=self._new,
            choice=choice,
        )

    def paraphrase(
        self, texts: Sequence[str], choice: TokenChoice, *, random: RandomSource
    ) -> Iterator[list[str]]:
        """Tell documents in other words, a batch at a time.

        Args:
            texts: the documents.
            choice: among all tokens of the model.
            random: of the owner.

        Yields:
            The paraphrases of the next `batch_size` documents.
        """
        for start in range(0, len(texts), self._batch_size):
            rows = self._rows(texts[start : start + self._batch_size])
            drawn = self._drawn(rows, choice, random)
            yield [self._text_of(tokens) for tokens in drawn[: len(rows)]]

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """The template around each document's first tokens."""
        return [
            [*self._head, *row[: self._most], *self._tail]
            for part in text_batches(texts)
            for row in self._tokenizer(list(texts[part]), add_special_tokens=False)["input_ids"]
        ]

    def _drawn(
        self, rows: Sequence[Sequence[int]], choice: TokenChoice, random: RandomSource
    ) -> npt.NDArray[np.int64]:
        """(batch_size, max_new_tokens) tokens: all of them are drawn, whatever they are."""
        import torch

        tokens = np.zeros((self._batch_size, self._width), dtype=np.int64)
        seen = np.zeros((self._batch_size, self._width), dtype=np.int64)
        seen[:, -1] = 1  # rows without a document see something, too
        for place, row in enumerate(rows):
            tokens[place, self._width - len(row) :] = row
            seen[place, self._width - len(row) :] = 1
        device = self._model.device
        inputs = torch.from_numpy(tokens).to(device)
        attention = torch.from_numpy(seen).to(device)
        drawn, cache = [], None
        with torch.inference_mode():
            for _ in range(self._new):
                places = (attention.cumsum(dim=1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
                output = self._model(
                    input_ids=inputs,
                    attention_mask=attention,
                    position_ids=places,
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
                cache = output.past_key_values
                logits = output.logits[:, -1].to(torch.float64).cpu().numpy()
                chosen = choice.draw(logits, random=random)
                drawn.append(chosen)
                inputs = torch.from_numpy(chosen[:, None]).to(device)
                attention = torch.cat((attention, torch.ones_like(inputs)), dim=1)
        return np.stack(drawn, axis=1)

    def _text_of(self, tokens: npt.NDArray[np.int64]) -> str:
        """A paraphrase up to the first token that ends it: post-processing of all tokens."""
        ends = np.flatnonzero(np.isin(tokens, list(self._ends)))
        kept = tokens[: ends[0]] if len(ends) else tokens
        text: str = self._tokenizer.decode(kept.tolist(), skip_special_tokens=True)
        return " ".join(text.split())


@dataclass(frozen=True, kw_only=True)
class Paraphrased:
    """What a file of paraphrases has cost.

    Attributes:
        documents: that were charged, in all calls for this file.
        lost: of them, not written: the process was killed in between.
        most_of_a_user: of them, those of the user who has most.
        epsilon_per_document: pure and local.
    """

    documents: int
    lost: int
    most_of_a_user: int
    epsilon_per_document: float

    @property
    def epsilon_per_user(self) -> float:
        """Of the user who has most documents."""
        return self.most_of_a_user * self.epsilon_per_document


def paraphrase_file(
    documents: Sequence[tuple[str, str]],
    output: Path,
    *,
    paraphraser: Paraphraser,
    choice: TokenChoice,
    random: RandomSource | None = None,
    progress: Callable[[int], object] | None = None,
) -> Paraphrased:
    """Write the paraphrases of documents, and the ledger of what they cost beside them.

    A document is in the ledger before its paraphrase is written. What was interrupted goes on with
    the documents that are not in it: none is paraphrased twice into one file. What other files hold
    of the same documents adds to it, and nothing here knows of it.

    Args:
        documents: user and text of each, in the order of the owner's file.
        output: JSON lines with `client_id` and `text`; the ledger is `<output>.ledger.jsonl`. Both
            for the owner's eyes: they say who has how many documents.
        paraphraser: the model; a file that was begun with other settings of it is refused.
        choice: among all its tokens; a file that was begun with another is refused.
        random: of the operating system unless a test gives another, which the ledger then names.
        progress: called with the number of documents just written.

    Raises:
        DataError: the output was begun with other settings or of other documents, or is being
            written by another process.
    """
    source: RandomSource = random or SecureRandom()
    how = paraphraser.settings(choice)
    ledger = output.with_name(f"{output.name}.ledger.jsonl")
    header = {
        "event": "opened",
        "mechanism": "token choice by clipped logits (DP-Prompt)",
        "epsilon": "pure, local, per document",
        "documents": len(documents),
        # Which they are, and in which order: the ledger names them by their places.
        "texts": _digest(documents),
        "randomness": source.name,
        "secure": source.secure,
        **how.to_dict(),
    }
    with _held(ledger, output):
        charged = _opened(ledger, output, header)
        rest = [place for place in range(len(documents)) if place not in charged]
        texts = paraphraser.paraphrase([documents[at][1] for at in rest], choice, random=source)
        position = 0
        for batch in texts:
            places = rest[position : position + len(batch)]
            position += len(batch)
            lines = [
                {
                    "event": "paraphrase",
                    "document": place,
                    "client_id": documents[place][0],
                    "tokens": how.max_new_tokens,
                    "epsilon": how.epsilon_per_document,
                }
                for place in places
            ]
            append_json_lines(ledger, lines)
            append_json_lines(
                output,
                [
                    {"client_id": documents[place][0], "text": text, "document": place}
                    for place, text in zip(places, batch, strict=True)
                ],
            )
            if progress is not None:
                progress(len(batch))
        users = Counter(str(line["client_id"]) for line in list(read_json_lines(ledger))[1:])
        return Paraphrased(
            documents=users.total(),
            lost=users.total() - sum(1 for _ in read_json_lines(output)),
            most_of_a_user=max(users.values(), default=0),
            epsilon_per_document=how.epsilon_per_document,
        )


def _digest(documents: Sequence[tuple[str, str]]) -> str:
    """Of users and texts in their order; it tells about the text, and stays with its owner."""
    digest = hashlib.blake2b(digest_size=16)
    for document in documents:
        digest.update(json.dumps(document).encode() + b"\n")
    return digest.hexdigest()


@contextlib.contextmanager
def _held(ledger: Path, output: Path) -> Iterator[None]:
    """Keep other processes from the output: two would draw the same documents."""
    descriptor = os.open(ledger, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise DataError(f"{output} is being written by another process: wait for its end") from None
    finally:
        os.close(descriptor)


def _opened(ledger: Path, output: Path, header: dict[str, Any]) -> set[int]:
    """The places of the documents that were charged before; begins the ledger where it is empty."""
    lines = list(read_json_lines(ledger))
    if not lines:
        if output.exists() and output.stat().st_size:
            raise DataError(
                f"{output} holds paraphrases, and {ledger.name} beside it says nothing of them: "
                "what it has cost is not known, so nothing is added to it"
            )
        output.touch(mode=0o600)
        append_json_lines(ledger, [header])
        return set()
    known = json.loads(json.dumps(header))
    first = dict(lines[0])
    if first.get("texts") != known["texts"]:
        raise DataError(
            f"{output} was begun with other documents, or in another order: some would be told a "
            "second time. Tell those that are not in it to another file"
        )
    if first != known:
        other = next((key for key in known if first.get(key) != known[key]), "event")
        raise DataError(
            f"{output} was begun with another {other} ({first.get(other)!r}, now {known[other]!r}):"
            " write to another file"
        )
    return {int(line["document"]) for line in lines[1:]}

"""Write each document of a file in other words, for a pure, local epsilon of its own (DP-Prompt).

    python paraphrase.py --data users.jsonl --output told.jsonl --model MODEL --epsilon 600

Every token is drawn among all tokens of the model, and all tokens are charged wherever a text ends:
`flower_privsyn.comparison.paraphrase`. The same command goes on with what was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.comparison.paraphrase import TEMPLATE, Paraphraser, TokenChoice
from flower_privsyn.data import load_users, public_texts
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import DataError
from flower_privsyn.files import append_json_lines, read_json_lines
from flower_privsyn.privacy.randomness import RandomSource, SecureRandom


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
    settings: Mapping[str, Any],
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
        settings: what the paraphraser is, for the ledger; public.
        random: of the operating system unless a test gives another, which the ledger then names.
        progress: called with the number of documents just written.

    Raises:
        DataError: the output was begun with other settings or of other documents, or is being
            written by another process.
    """
    source: RandomSource = random or SecureRandom()
    epsilon = paraphraser.epsilon(choice)
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
        **settings,
        "choice": asdict(choice),
        "epsilon_per_document": epsilon,
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
                    "tokens": paraphraser.max_new_tokens,
                    "epsilon": epsilon,
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
            epsilon_per_document=epsilon,
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


def main() -> None:
    """Read the command line and write the paraphrases, with their ledger beside them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="the owner's documents")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines to write")
    price = parser.add_mutually_exclusive_group(required=True)
    price.add_argument("--epsilon", type=float, help="of a document; sets the temperature")
    price.add_argument("--temperature", type=float)
    parser.add_argument("--model", default="privsyn-lm", help="causal language model")
    parser.add_argument("--template", default=TEMPLATE, help='"{text}" is the document')
    parser.add_argument("--max-document-tokens", type=int, default=256, help="read of a document")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="drawn and charged")
    asked = parser.parse_args()

    users = load_users(asked.data, strict=True)
    documents = [
        (users.user_ids[owner], text)
        for owner, text in zip(users.owners.tolist(), users.texts, strict=True)
    ]
    settings = {
        "template": asked.template,
        "max_document_tokens": asked.max_document_tokens,
        "max_new_tokens": asked.max_new_tokens,
    }
    paraphraser = Paraphraser(asked.model, **settings)
    # On public text: measured on the documents, they would tell of them.
    public = public_texts(tokenizer=load_tokenizer("privsyn-lm")[0], max_tokens=64)
    low, high = paraphraser.logit_bounds(public)
    size = paraphraser.vocabulary
    if asked.temperature is not None:
        choice = TokenChoice(low=low, high=high, temperature=asked.temperature, vocabulary=size)
    else:
        per_token = asked.epsilon / asked.max_new_tokens
        choice = TokenChoice.of_epsilon(per_token, low=low, high=high, vocabulary=size)
    print(f"Logits from {low:.4g} to {high:.4g} over a temperature of {choice.temperature:.4g}")
    found = paraphrase_file(
        documents,
        asked.output,
        paraphraser=paraphraser,
        choice=choice,
        settings={"model": asked.model, **settings},
    )
    print(
        f"{found.documents:,} documents of {len(users):,} users: epsilon "
        f"{found.epsilon_per_document:.6g} a document, {found.epsilon_per_user:.6g} for the user "
        f"with most; pure and local, not to be compared with a run's"
    )


if __name__ == "__main__":
    main()

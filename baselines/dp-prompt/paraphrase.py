"""Write each document of a file in other words, for a pure, local epsilon of its own (DP-Prompt).

    python paraphrase.py --data users.jsonl --output told.jsonl --model MODEL --epsilon 600

Every token is drawn among all tokens of the model, and all tokens are charged wherever a text ends:
`flower_privsyn.comparison.paraphrase`. What was interrupted is charged, and not gone on with:
another command writes to another file, and adds to what the documents have cost.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flower_privsyn.checks import check_number
from flower_privsyn.comparison.paraphrase import COLDEST, TEMPLATE, Paraphraser, TokenChoice
from flower_privsyn.data import load_users
from flower_privsyn.errors import DataError
from flower_privsyn.files import append_json_lines
from flower_privsyn.privacy.randomness import RandomSource, SecureRandom


@dataclass(frozen=True, kw_only=True)
class Paraphrased:
    """What a file of paraphrases has cost.

    Attributes:
        documents: that were charged.
        most_of_a_user: of them, those of the user who has most.
        epsilon_per_document: pure and local.
    """

    documents: int
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
) -> Paraphrased:
    """Write the paraphrases of documents, and the ledger of what they cost beside them.

    A document is in the ledger before its paraphrase is written. What other files hold of the same
    documents adds to it, and nothing here knows of it.

    Args:
        documents: user and text of each.
        output: JSON lines with `client_id` and `text`, a new file; the ledger is
            `<output>.ledger.jsonl`. Both for the owner's eyes: they say who has how many documents.
        paraphraser: the model.
        choice: among all its tokens.
        settings: what the paraphraser is, for the ledger; public.
        random: of the operating system unless a test gives another, which the ledger then names.

    Raises:
        DataError: the output or its ledger exists.
    """
    source: RandomSource = random or SecureRandom()
    epsilon = paraphraser.epsilon(choice)
    ledger = output.with_name(f"{output.name}.ledger.jsonl")
    try:
        for file in (ledger, output):
            file.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise DataError(
            f"{output} was begun before: to tell the same documents again adds to what they have "
            "cost; name another file"
        ) from None
    header = {
        "event": "opened",
        "mechanism": "token choice by clipped logits (DP-Prompt)",
        "epsilon": "pure, local, per document",
        "documents": len(documents),
        "randomness": type(source).__name__,
        "secure": source.secure,
        **settings,
        "choice": asdict(choice),
        "epsilon_per_document": epsilon,
    }
    append_json_lines(ledger, [header])
    position = 0
    for batch in paraphraser.paraphrase([text for _, text in documents], choice, random=source):
        users = [user for user, _ in documents[position : position + len(batch)]]
        charge = {"event": "paraphrase", "tokens": paraphraser.max_new_tokens, "epsilon": epsilon}
        append_json_lines(ledger, [{**charge, "client_id": user} for user in users])
        told = zip(users, batch, strict=True)
        append_json_lines(output, [{"client_id": user, "text": text} for user, text in told])
        position += len(batch)
    return Paraphrased(
        documents=len(documents),
        most_of_a_user=max(Counter(user for user, _ in documents).values(), default=0),
        epsilon_per_document=epsilon,
    )


def choice_of_epsilon(epsilon: float, *, low: float, high: float, vocabulary: int) -> TokenChoice:
    """The choice of the lowest temperature at which a token costs no more than epsilon.

    Args:
        epsilon: of one token, > 0.
        low: b1.
        high: b2.
        vocabulary: V.

    Raises:
        ConfigError: a value is out of range.
    """
    check_number("epsilon", epsilon, gt=0)

    def choice(temperature: float) -> TokenChoice:
        return TokenChoice(low=low, high=high, temperature=temperature, vocabulary=vocabulary)

    cold = COLDEST * (high - low)
    # By the bound for an endless vocabulary this is warm enough; a colder one may be as well.
    warm = max(2.0 * (high - low) / epsilon, cold) * (1 + 1e-6)
    for _ in range(60):
        middle = 0.5 * (cold + warm)
        if choice(middle).epsilon <= epsilon:
            warm = middle
        else:
            cold = middle
    return choice(warm)


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
    low, high = paraphraser.logit_bounds()
    size = paraphraser.vocabulary
    if asked.temperature is not None:
        choice = TokenChoice(low=low, high=high, temperature=asked.temperature, vocabulary=size)
    else:
        per_token = asked.epsilon / asked.max_new_tokens
        choice = choice_of_epsilon(per_token, low=low, high=high, vocabulary=size)
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

"""Write each document of a file in other words, for a pure, local epsilon of its own (DP-Prompt).

    python paraphrase.py --data users.jsonl --output told.jsonl --model MODEL --epsilon 600

Every token is drawn among all tokens of the model, and all tokens are charged wherever a text ends:
`flower_privsyn.comparison.paraphrase`. The same command goes on with what was interrupted.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flower_privsyn.data import load_users, public_texts
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.comparison.paraphrase import TEMPLATE, Paraphraser, paraphrase_file
from flower_privsyn.privacy.token_choice import TokenChoice


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
    paraphraser = Paraphraser(
        asked.model,
        template=asked.template,
        max_document_tokens=asked.max_document_tokens,
        max_new_tokens=asked.max_new_tokens,
    )
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
    found = paraphrase_file(documents, asked.output, paraphraser=paraphraser, choice=choice)
    print(
        f"{found.documents:,} documents of {len(users):,} users: epsilon "
        f"{found.epsilon_per_document:.6g} a document, {found.epsilon_per_user:.6g} for the user "
        f"with most; pure and local, not to be compared with a run's"
    )


if __name__ == "__main__":
    main()

"""Cut the text samples that ship with the package out of the corpus.

    python scripts/sample_data/make.py --corpus DIR

writes `flower_privsyn/data/passages/passages.jsonl.gz` (public passages, seeds of private
evolution) and `abstracts.jsonl.gz` beside it, `flower_privsyn/data/sample/users.jsonl` (600
speakers), and the data of `examples/existing-federation`, `baselines/aug-pe` and `baselines/fred`.
The corpus is described in `scripts/sample_data/README.md`. The choice is by hash, so the result is
the same everywhere.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flower_privsyn.comparison.people import sealed

ROOT = Path(__file__).resolve().parents[2]
SHARE_ALIKE = {
    "Vibhas-hs-edu/WikiTasks",
    "ZhouYii/PatchedDistro",
    "OWASP/CheatSheetSeries",
    "openedx/edx-documentation",
    "privacyguides/privacyguides.org",
}
THIRD_PARTY = {"openstax/osbooks-writing-guide"}
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[\"'(A-Z])")


def read(corpus: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of one part of the corpus."""
    for shard in sorted(corpus.glob(f"{name}-*.jsonl.gz")):
        with gzip.open(shard, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


def order(text: str) -> str:
    """A fixed pseudo-random order."""
    return hashlib.sha256(text.encode()).hexdigest()


def passage(text: str, key: str, *, low: int = 25, high: int = 45) -> str | None:
    """Consecutive sentences of `low` to `high` words from somewhere in a document."""
    sentences = [s for s in SENTENCE.split(" ".join(text.split())) if s]
    if not sentences:
        return None
    start = int(order(key)[:8], 16) % len(sentences)
    words: list[str] = []
    for sentence in sentences[start:] + sentences[:start]:
        more = sentence.split()
        if len(words) + len(more) > high:
            if len(words) >= low:
                break
            words = []
            continue
        words += more
    joined = " ".join(words)
    usable = low <= len(words) <= high and joined[0].isupper() and joined[-1] in ".!?\"'"
    return joined if usable and "[" not in joined else None


def write_passages(corpus: Path, count: int) -> None:
    """One passage per permissively licensed public document."""
    documents = [d for d in read(corpus, "public") if d["source"] not in SHARE_ALIKE | THIRD_PARTY]
    documents.sort(key=lambda d: order(d["doc_id"] + d["source"]))
    target = ROOT / "flower_privsyn/data/passages/passages.jsonl.gz"
    target.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for document in documents:
        text = passage(document["text"], document["doc_id"])
        if text:
            lines.append(json.dumps({"text": text, "source": document["source"]}))
        if len(lines) == count:
            break
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        file.write(("\n".join(lines) + "\n").encode())
    print(f"{target}: {len(lines)} passages, {target.stat().st_size / 2**20:.2f} MiB")


def write_abstracts(corpus: Path, count: int) -> None:
    """Abstracts of authors who are neither sealed nor users of the quickstart."""
    users = ROOT / "examples/quickstart/quickstart/data/users.jsonl"
    taken = {json.loads(line)["client_id"] for line in users.read_text("utf-8").splitlines()}
    authors = {
        document["client_id"]: document["text"]
        for document in read(corpus, "abstracts")
        if document["client_id"] not in taken and not sealed([document["client_id"]])[0]
    }
    target = ROOT / "flower_privsyn/data/passages/abstracts.jsonl.gz"
    chosen = sorted(authors, key=order)[:count]
    lines = [json.dumps({"text": authors[one], "source": one}) + "\n" for one in chosen]
    with gzip.GzipFile(target, "wb", mtime=0) as file:
        file.write("".join(lines).encode())
    print(f"{target}: {len(lines)} abstracts, {target.stat().st_size / 2**20:.2f} MiB")


def write_users(
    corpus: Path, part: str, count: int, max_words: int, target: Path, *, unsealed: bool
) -> None:
    """Users with their documents, each user cut at `max_words` words.

    Args:
        corpus: folder of the corpus.
        part: which users.
        count: how many.
        max_words: of one user.
        target: the file.
        unsealed: leave out those whom docs/evaluation.md seals.
    """
    users: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for document in read(corpus, part):
        if not (unsealed and sealed([document["client_id"]])[0]):
            users[document["client_id"]].append(document)
    chosen = sorted(users, key=order)[: count * 4]
    rows = []
    kept = 0
    for user in chosen:
        words = 0
        mine = []
        for document in sorted(users[user], key=lambda d: order(d["text"])):
            room = max_words - words
            if room < 40:
                break
            text = " ".join(document["text"].split()[:room])
            words += len(text.split())
            mine.append({"client_id": user, "date": document["date"], "text": text})
        if words >= 100:
            rows += mine
            kept += 1
        if kept == count:
            break
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{target}: {kept} users, {len(rows)} texts, {target.stat().st_size / 2**20:.2f} MiB")


#: Classes of the labelled sample, and the arXiv categories they are made of.
CLASSES = {"astronomy": "astro-ph", "language": "cs.CL", "robotics": "cs.RO", "vision": "cs.CV"}


def write_labelled(corpus: Path, each: int, target: Path) -> None:
    """Abstracts of four fields with the field as label; one abstract is one user, none sealed."""
    fields = {category: name for name, category in CLASSES.items()}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for document in read(corpus, "abstracts"):
        category = document["cat"]
        name = fields.get("astro-ph" if category.startswith("astro-ph") else category)
        if name and not sealed([document["client_id"]])[0]:
            kept = {key: document[key] for key in ("client_id", "date", "text")}
            found[name].append({**kept, "label": name})
    rows = [
        row
        for name in CLASSES
        for row in sorted(found[name], key=lambda row: order(row["client_id"]))[:each]
    ]
    rows.sort(key=lambda row: order("mixed" + row["client_id"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    print(f"{target}: {len(rows)} labelled abstracts, {target.stat().st_size / 2**20:.2f} MiB")


def write_candidates(corpus: Path, source: Path, folder: Path, *, words: int, texts: int) -> None:
    """Speakers with less text each, and two sets of public text to rank: speeches, and abstracts.

    Args:
        corpus: folder of the corpus.
        source: the speakers, with all of their text.
        folder: where the files go.
        words: of one speaker, and of a text.
        texts: in each set; by people who are neither speakers of the sample nor sealed.
    """
    users: dict[str, list[str]] = defaultdict(list)
    for line in source.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        users[row["client_id"]] += row["text"].split()
    files = {
        "users": [
            {"client_id": user, "text": " ".join(said[:words])} for user, said in users.items()
        ]
    }
    for name, part in (("near", "speech"), ("far", "abstracts")):
        found: dict[str, str] = {}
        for document in read(corpus, part):
            one = document["client_id"]
            if one not in users and one not in found and not sealed([one])[0]:
                found[one] = " ".join(document["text"].split()[:words])
        chosen = sorted(found, key=order)[:texts]
        files[name] = [{"text": found[one]} for one in chosen]
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        target = folder / f"{name}.jsonl"
        target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{target}: {len(rows)} texts, {target.stat().st_size / 2**20:.2f} MiB")


def write_word_model(source: Path, users: int) -> None:
    """The first of the speakers and the commonest public words, for the word model."""
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    chosen = set(list(dict.fromkeys(row["client_id"] for row in rows))[:users])
    kept = "".join(json.dumps(row) + "\n" for row in rows if row["client_id"] in chosen)
    words: Counter[str] = Counter()
    with gzip.open(ROOT / "flower_privsyn/data/passages/passages.jsonl.gz", "rt") as file:
        for line in file:
            words.update(json.loads(line)["text"].lower().split())
    vocabulary = sorted(words, key=lambda word: (-words[word], word))[:500]
    folder = ROOT / "examples/existing-federation/word_model/data"
    (folder / "users.jsonl").write_text(kept, encoding="utf-8")
    (folder / "vocabulary.json").write_text(json.dumps(vocabulary) + "\n")
    print(f"examples/existing-federation: {users} users, {len(vocabulary)} words")


def main() -> None:
    """Write all samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--passages", type=int, default=6144)
    parser.add_argument("--abstracts", type=int, default=200)
    parser.add_argument("--users", type=int, default=600)
    parser.add_argument("--part", default="speech", choices=("speech", "abstracts"))
    parser.add_argument("--max-words", type=int, default=360)
    parser.add_argument("--users-file", type=Path, default=None)
    arguments = parser.parse_args()
    if arguments.users_file is None:
        write_passages(arguments.corpus, arguments.passages)
        write_abstracts(arguments.corpus, arguments.abstracts)
    target = arguments.users_file or ROOT / "flower_privsyn/data/sample/users.jsonl"
    write_users(
        arguments.corpus,
        arguments.part,
        arguments.users,
        arguments.max_words,
        target,
        # These speakers were chosen before anybody was sealed.
        unsealed=arguments.users_file is not None,
    )
    if arguments.users_file is None:
        write_word_model(target, 100)
        ranked = ROOT / "baselines/fred/fred_app/sample"
        write_candidates(arguments.corpus, target, ranked, words=120, texts=400)
        labelled = ROOT / "baselines/aug-pe/aug_pe/sample/users.jsonl"
        write_labelled(arguments.corpus, 300, labelled)


if __name__ == "__main__":
    main()

"""The public corpus: read, split by work, tokenized once, and dealt out as training rows."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from flower_privsyn.generation.prompts import Prompt, load_prompt  # noqa: E402
from flower_privsyn.generation.topics import condition  # noqa: E402

PAD_TOKEN, BOS_TOKEN, EOS_TOKEN, UNK_TOKEN, MASK_TOKEN = "<pad>", "<s>", "</s>", "<unk>", "<mask>"
FIM_TOKENS = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
SPECIAL = [PAD_TOKEN, BOS_TOKEN, EOS_TOKEN, UNK_TOKEN, MASK_TOKEN, *FIM_TOKENS]
PAD, BOS, EOS, UNK, MASK, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = range(len(SPECIAL))
VOCABULARY = 8192
HELD_OUT_ONE_IN = 50  # 2 % of the works
SAMPLE_TOKENS = 64
PROMPT_ROW = 448  # six samples of 64 tokens, their markers and the heading: 442 tokens
PLAIN_ROW = 256
MASKED_ROWS = (66, 128)
CONTEXT = 512

#: What the keyword objective calls a document of each group of the corpus.
DOCUMENT_TYPES = {
    "wikipedia": "encyclopedia article",
    "openstax": "textbook",
    "standardebooks": "novel",
    "usgov": "government text",
    "docs": "technical documentation",
}
_WORD = re.compile(r"[A-Za-z][a-z]{3,}")


# ------------------------------------------------------------------------------------- preparing


def read_corpus(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the documents of `public-*.jsonl.gz` in file order."""
    shards = sorted(folder.glob("public-*.jsonl.gz"))
    if not shards:
        raise SystemExit(f"no public-*.jsonl.gz in {folder}")
    for shard in shards:
        with gzip.open(shard, "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)


def is_held_out(document: dict[str, str]) -> bool:
    """Choose 2 % of the works by a hash of their name; the parts of a work stay together."""
    work = document["source"] + "/" + document["doc_id"].split("#")[0]
    digest = hashlib.blake2b(work.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % HELD_OUT_ONE_IN == 0


def clean(text: str) -> str:
    """One blank between words, at most one empty line between paragraphs."""
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
    return "\n\n".join(part for part in paragraphs if part)


def train_tokenizer(texts: list[str], prompt: Prompt) -> Any:
    """Train a byte-level BPE; the prompts' own words take part, so that a marker stays short."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    scaffold = [
        prompt.render([str(number) for number in range(1, 6)]) + "6\n",
        *(condition([""], document_type=kind) for kind in DOCUMENT_TYPES.values()),
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*texts, *scaffold * 2000], trainer)
    return tokenizer


def prepare(corpus: Path, work: Path) -> None:
    """Split, train the tokenizer, and tokenize once into flat uint16 arrays."""
    started = time.process_time()
    texts: dict[str, list[str]] = {"train": [], "held_out": []}
    kinds: dict[str, list[int]] = {"train": [], "held_out": []}
    groups: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    document_frequency: Counter[str] = Counter()
    names = list(DOCUMENT_TYPES)
    for document in read_corpus(corpus):
        split = "held_out" if is_held_out(document) else "train"
        text = clean(document["text"])
        texts[split].append(text)
        kinds[split].append(names.index(document["group"]))
        groups[document["group"]] += 1
        sources[document["source"]] += 1
        if split == "train":
            document_frequency.update({word.lower() for word in _WORD.findall(text)})
    print(f"[prepare] documents: {[(k, len(v)) for k, v in texts.items()]}", flush=True)
    tokenizer = train_tokenizer(texts["train"], load_prompt("pre-text"))
    tokenizer.save(str(work / "bpe.json"))
    common = {word: count for word, count in document_frequency.items() if count >= 3}
    (work / "document_frequency.json").write_text(json.dumps(common))
    facts: dict[str, Any] = {"groups": dict(groups), "sources": dict(sources)}
    for split, documents in texts.items():
        facts[split] = tokenize(work, split, documents, kinds[split])
    facts["cpu_seconds"] = round(time.process_time() - started, 1)
    (work / "facts.json").write_text(json.dumps(facts, indent=2))
    print(f"[prepare] {facts['train']} {facts['held_out']}", flush=True)


def tokenize(
    work: Path, split: str, documents: Sequence[str], kinds: Sequence[int]
) -> dict[str, int]:
    """Tokenize documents once, into the files that `Corpus` reads.

    Args:
        work: the folder; it holds the tokenizer.
        split: what the files are called.
        documents: cleaned texts, at least one.
        kinds: for each document, which of `DOCUMENT_TYPES` it is.

    Returns:
        Numbers of `documents`, `tokens` (with one end token a document) and `bytes`.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
    # A document's bounds exclude the end token that follows it in the stream.
    bounds = np.zeros((len(documents), 2), dtype=np.int64)
    pieces: list[np.ndarray] = []
    position = 0
    for start in range(0, len(documents), 1000):
        for offset, encoded in enumerate(tokenizer.encode_batch(documents[start : start + 1000])):
            ids = np.asarray([*encoded.ids, EOS], dtype=np.uint16)
            bounds[start + offset] = position, position + len(ids) - 1
            position += len(ids)
            pieces.append(ids)
    np.save(work / f"{split}.npy", np.concatenate(pieces))
    np.save(work / f"{split}_bounds.npy", bounds)
    np.save(work / f"{split}_kinds.npy", np.asarray(kinds, dtype=np.uint8))
    return {
        "documents": len(documents),
        "tokens": position,
        "bytes": sum(len(text.encode()) for text in documents),
    }


# ------------------------------------------------------------------------------------------ rows


class Corpus:
    """The tokenized corpus, and random training rows of every objective.

    Args:
        work: the folder `prepare` wrote.
        split: "train" or "held_out".
        seed: of the rows.
    """

    def __init__(self, work: Path, split: str, seed: int | Sequence[int]) -> None:
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(work / "bpe.json"))
        self.stream = np.load(work / f"{split}.npy", mmap_mode="r")
        self.bounds = np.load(work / f"{split}_bounds.npy")
        self.kinds = np.load(work / f"{split}_kinds.npy")
        self.random = np.random.default_rng(seed)
        lengths = self.bounds[:, 1] - self.bounds[:, 0]
        # Six samples of 64 tokens must fit.
        self.long = np.flatnonzero(lengths >= 6 * SAMPLE_TOKENS)
        self.weights = lengths[self.long] / lengths[self.long].sum()
        self.prompt = load_prompt("pre-text")
        counts = json.loads((work / "document_frequency.json").read_text())
        documents = len(np.load(work / "train_bounds.npy", mmap_mode="r"))
        self.rarity = {word: math.log(documents / count) for word, count in counts.items()}
        self._prompts: list[list[int]] = []
        self._keyword_documents: list[list[int]] = []

    def plain(self, rows: int, length: int = PLAIN_ROW) -> np.ndarray:
        """Rows of the packed stream at random offsets, documents separated by the end token."""
        starts = self.random.integers(0, len(self.stream) - length, size=rows)
        return np.stack([self.stream[start : start + length] for start in starts]).astype(np.int64)

    def prompts(self, rows: int, length: int = PROMPT_ROW) -> np.ndarray:
        """Expansion prompts with six samples of one document; what is left is plain text."""
        while len(self._prompts) < rows:
            self._prompts += self._make_prompts(256)
        return self._filled([self._prompts.pop() for _ in range(rows)], length)

    def keyword_documents(self, rows: int, length: int = PLAIN_ROW) -> np.ndarray:
        """A document type, keywords of a passage, and the passage."""
        while len(self._keyword_documents) < rows:
            self._keyword_documents += self._make_keyword_documents(256, length)
        return self._filled([self._keyword_documents.pop() for _ in range(rows)], length)

    def fill_in_the_middle(self, rows: int, length: int = PLAIN_ROW) -> np.ndarray:
        """A passage with a hole: what is before, what is after, then what was in the hole.

        References:
            Bavarian et al., "Efficient Training of Language Models to Fill in the Middle", 2022
            (prefix-suffix-middle order).
        """
        passages = self.plain(rows, length - 4)
        out = np.empty((rows, length), dtype=np.int64)
        for row, passage in zip(out, passages, strict=True):
            first, second = np.sort(self.random.integers(1, len(passage), size=2))
            row[:] = [
                FIM_PREFIX,
                *passage[:first],
                FIM_SUFFIX,
                *passage[second:],
                FIM_MIDDLE,
                *passage[first:second],
                EOS,
            ]
        return out

    def mixed(self, rows: int, length: int = PLAIN_ROW) -> np.ndarray:
        """Four rows of plain text for every two of keyword documents and one with a hole."""
        keywords, holes = (2 * rows) // 7, rows // 7
        return np.concatenate(
            [
                self.plain(rows - keywords - holes, length),
                self.keyword_documents(keywords, length),
                self.fill_in_the_middle(holes, length),
            ]
        )

    def masked(self, rows: int, length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows `<s> text </s>` with 30 % of the text's tokens masked.

        Returns:
            Ids (rows, length) with the masks in; flat places and targets, both (rows * most,)
            with `most` the number of masks of a full row; unused targets are -100.
        """
        starts = self.random.integers(0, len(self.stream) - length, size=rows)
        slices = []
        for start in starts:
            piece = self.stream[start : start + length - 2]
            ends = np.flatnonzero(piece == EOS)
            if len(ends):  # the longer side of a document border
                cut = int(ends[0])
                piece = piece[:cut] if cut > len(piece) // 2 else piece[int(ends[-1]) + 1 :]
            slices.append(piece.tolist())
        texts = [text.strip() or "..." for text in self.tokenizer.decode_batch(slices)]
        ids = np.full((rows, length), PAD, dtype=np.int64)
        most = round(0.3 * (length - 2))
        places = np.zeros((rows, most), dtype=np.int64)
        targets = np.full((rows, most), -100, dtype=np.int64)
        for row, encoded in enumerate(self.tokenizer.encode_batch(texts)):
            tokens = encoded.ids[: length - 2]
            ids[row, : len(tokens) + 2] = [BOS, *tokens, EOS]
            count = max(1, round(0.3 * len(tokens)))
            chosen = 1 + self.random.permutation(len(tokens))[:count]
            places[row, :count] = row * length + chosen
            targets[row, :count] = ids[row, chosen]
            ids[row, chosen] = MASK
        return ids, places.reshape(-1), targets.reshape(-1)

    def keywords(self, text: str, most: int = 10) -> list[str]:
        """The words of a text that are frequent in it and rare in the corpus, best first."""
        counts = Counter(word.lower() for word in _WORD.findall(text))
        score = {w: math.sqrt(n) * self.rarity[w] for w, n in counts.items() if w in self.rarity}
        return sorted(score, key=lambda word: (-score[word], word))[:most]

    def _filled(self, documents: list[list[int]], length: int) -> np.ndarray:
        out = np.empty((len(documents), length), dtype=np.int64)
        for row, ids in zip(out, documents, strict=True):
            if len(ids) < length:
                ids = [*ids, *self.plain(1, length - len(ids))[0]]
            row[:] = ids[:length]
        return out

    def _make_prompts(self, count: int) -> list[list[int]]:
        documents = self.random.choice(self.long, size=count, p=self.weights)
        slices: list[list[int]] = []
        for document in documents:
            begin, end = self.bounds[document]
            pieces = (end - begin) // SAMPLE_TOKENS
            chosen = self.random.permutation(pieces)[:6]
            # Most private samples are full 64-token chunks; the others end earlier.
            full = self.random.random() < 0.7
            shift = self.random.integers(0, end - begin - pieces * SAMPLE_TOKENS + 1)
            for piece in chosen:
                at = begin + shift + piece * SAMPLE_TOKENS
                size = SAMPLE_TOKENS if full else self.random.integers(20, SAMPLE_TOKENS + 1)
                slices.append(self.stream[at : at + size].tolist())
        texts = self.tokenizer.decode_batch(slices)
        rendered = [
            self._document([text if text.strip() else "..." for text in texts[6 * i : 6 * i + 6]])
            for i in range(count)
        ]
        return [[*encoded.ids, EOS] for encoded in self.tokenizer.encode_batch(rendered)]

    def _document(self, samples: list[str]) -> str:
        """All samples under their markers: what teaches a model the format."""
        return self.prompt.render(samples[:-1]) + " ".join(samples[-1].split()) + "\n"

    def _make_keyword_documents(self, count: int, length: int) -> list[list[int]]:
        names = list(DOCUMENT_TYPES.values())
        documents = self.random.integers(len(self.bounds), size=count)
        slices = []
        for document in documents:
            begin, end = self.bounds[document]
            size = min(end - begin, length - 48)
            # Half of the passages open their document, as a generated document should.
            opens = self.random.random() < 0.5
            at = begin if opens else self.random.integers(begin, end - size + 1)
            slices.append(self.stream[at : at + size].tolist())
        rendered = []
        for document, text in zip(documents, self.tokenizer.decode_batch(slices), strict=True):
            best = self.keywords(text)
            chosen = self.random.permutation(best)[: self.random.integers(3, 9)]
            kind = names[self.kinds[document]]
            rendered.append(condition(chosen.tolist(), document_type=kind) + text.strip())
        return [[*encoded.ids, EOS] for encoded in self.tokenizer.encode_batch(rendered)]

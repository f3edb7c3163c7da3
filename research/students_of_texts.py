r"""Other students of texts that are there: larger ones, or trained for longer.

    python -m research.students_of_texts COMPARISON --texts NAME=FILE ... \
        --students privsyn-tiny privsyn-lm --steps 200 --results FILE

COMPARISON is the folder of a comparison, whose users they are measured on and whose training they
have, but for its steps; FILE is JSON lines with `text`, as a run's `synthetic.jsonl` or a cell's
`expanded.jsonl`; the name "private" without a file is all text of the users who took part, and
"none" the student as it is. With `--teacher privsyn-lm` that model learns from the texts first, for
`--teacher-steps`, and then teaches the student on them: a writer with other tokens, as any real
one, cannot do that itself. What is in the results already is not done again.

Everything it writes is computed from private text outside the privacy budget.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flower_privsyn.data import load_users
from flower_privsyn.data.chunking import Chunking
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import ConfigError, PrivsynError
from flower_privsyn.evaluation.copies import copy_rates
from flower_privsyn.evaluation.language_model import evaluate_language_model
from flower_privsyn.files import append_json_lines, located, read_json, read_json_lines
from flower_privsyn.training.causal import CausalTraining, fine_tune
from flower_privsyn.training.distillation import Distillation


class Students:
    """Trains students as a comparison does, and measures them on its users.

    Args:
        comparison: its folder.
        embedding_model: whose tokens samples are cut by.
        precision: of the reading of held-out text: "float32", as in a comparison, or "bfloat16".
    """

    def __init__(
        self, comparison: Path, *, embedding_model: str = "all-MiniLM-L6-v2", precision: str
    ) -> None:
        self._folder, self._precision = comparison, precision
        fixed = read_json(comparison / "compare.json")["fixed"]
        self.training = CausalTraining(**fixed["training"])
        self._cut = Chunking(max_tokens=64)
        self._tokenizer = load_tokenizer(located(embedding_model))[0]
        self._held_out = self._samples("held_out")
        self._private = self._samples("private").texts

    @property
    def held_out(self) -> list[str]:
        """The samples of the people who took no part."""
        return list(self._held_out.texts)

    def _samples(self, group: str) -> Any:
        users = load_users(self._folder / "data" / f"{group}.jsonl")
        return self._cut.samples(self._cut.documents(users), tokenizer=self._tokenizer)

    def texts(self, name: str, file: str) -> list[str]:
        """The texts of a name.

        Raises:
            ConfigError: there are none.
        """
        if file:
            found = [str(row["text"]) for row in read_json_lines(Path(file))]
        else:
            found = list(self._private) if name == "private" else []
        if not found and name != "none":
            raise ConfigError(
                f'--texts {name}={file} has no texts, and is neither "private" nor "none"'
            )
        return found

    def measured(
        self,
        student: str,
        texts: Sequence[str],
        *,
        steps: int,
        rate: float,
        seed: int,
        teacher: str = "",
        teacher_steps: int = 0,
    ) -> dict[str, Any]:
        """What a student of the texts predicts; of none, the student as it is."""
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            model: str | Path = located(student)
            if texts:
                settings = replace(self.training, max_steps=steps, learning_rate=rate)
                teaches = None
                if teacher:
                    read = replace(settings, max_steps=teacher_steps)
                    learnt = Path(folder) / "teacher"
                    fine_tune(located(teacher), texts, settings=read, output=learnt, seed=seed)
                    teaches = Distillation(learnt)
                model = Path(folder) / "student"
                fine_tune(
                    located(student),
                    texts,
                    settings=settings,
                    output=model,
                    seed=seed,
                    distillation=teaches,
                )
            found = evaluate_language_model(
                model,
                self._held_out.texts,
                owners=self._held_out.owners,
                max_tokens=self.training.max_tokens,
                precision=self._precision,
            )
        accuracy, bits = found.next_token_accuracy, found.bits_per_byte
        return {
            "accuracy": accuracy.value,
            "interval": [accuracy.low, accuracy.high],
            "bits_per_byte": None if bits is None else bits.value,
            "rows": len(texts),
            "copies": copy_rates(texts, self._private).any if texts else None,
            "minutes": round((time.monotonic() - begun) / 60, 2),
        }


def main(words: Sequence[str] | None = None) -> int:
    """Train and measure what is asked for, one line of results each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("comparison", type=Path)
    parser.add_argument("--texts", nargs="+", required=True, metavar="NAME[=FILE]")
    parser.add_argument("--students", nargs="+", default=["privsyn-tiny"])
    parser.add_argument("--steps", type=int, nargs="+", default=[200])
    parser.add_argument("--rate", type=float, help="of learning; the comparison's")
    parser.add_argument("--most", type=int, help="texts, the first ones")
    parser.add_argument("--teacher", default="", help="that learns from the texts first")
    parser.add_argument("--teacher-steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="float32", help="in which held-out text is read")
    parser.add_argument("--results", type=Path, required=True)
    options = parser.parse_args(words)
    try:
        students = Students(options.comparison, precision=options.precision)
        rate = options.rate or students.training.learning_rate
        done = list(read_json_lines(options.results))
        every = itertools.product(options.students, options.steps, options.texts)
        for student, steps, word in every:
            name, _, file = word.partition("=")
            asked = {
                "student": student,
                "texts": name,
                "steps": 0 if name == "none" else steps,
                "rate": rate,
                "most": options.most,
                "seed": options.seed,
                "teacher": options.teacher,
                "teacher_steps": options.teacher_steps if options.teacher else 0,
            }
            if any(asked.items() <= line.items() for line in done):
                continue
            found = students.measured(
                student,
                students.texts(name, file)[: options.most],
                steps=steps,
                rate=rate,
                seed=options.seed,
                teacher=options.teacher,
                teacher_steps=options.teacher_steps,
            )
            done.append(asked | found)
            append_json_lines(options.results, done[-1:])
            bits = found["bits_per_byte"]
            print(
                f"{student}, {name}, {steps} steps: {100 * found['accuracy']:.2f} %"
                + ("" if bits is None else f", {bits:.4f} bits per byte")
            )
    except PrivsynError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

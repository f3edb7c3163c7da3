"""Fine-tuning: what it learns, that nothing changes the result but the arguments, and resuming."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.errors import ConfigError, ModelError, TrainingError
from flower_privsyn.training import causal, storage
from flower_privsyn.training.causal import CausalTraining, fine_tune, training_rows
from flower_privsyn.training.distillation import Distillation, divergence
from flower_privsyn.training.tokens import text_window
from tests.support.probe import Killed


def quick(**changes: Any) -> CausalTraining:
    values: dict[str, Any] = {
        "learning_rate": 3e-3,
        "batch_size": 8,
        "max_steps": 4,
        "warmup_steps": 0,
        "schedule": "constant",
        "device": "cpu",
        **changes,
    }
    return CausalTraining(**values)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return dict(model.state_dict())


def same(first: Path, second: Path) -> bool:
    one, other = weights(first), weights(second)
    return all(torch.equal(one[name], other[name]) for name in one)


class TestRows:
    @pytest.fixture
    def tokenizer(self, gpt2: Path) -> Any:
        return AutoTokenizer.from_pretrained(gpt2)

    def rows(self, tokenizer: Any, given: list[str], **changes: Any) -> list[list[int]]:
        settings = quick(**changes)
        return training_rows(tokenizer, given, settings=settings, window=settings.max_tokens)

    def test_a_text_stands_between_a_beginning_and_an_end(
        self, tokenizer: Any, texts: list[str]
    ) -> None:
        row = self.rows(tokenizer, texts[:1], max_tokens=200)[0]
        assert row[0] == tokenizer.bos_token_id
        assert row[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(row[1:-1]) == texts[0]

    def test_ends_may_be_left_out(self, tokenizer: Any, texts: list[str]) -> None:
        for changes in ({"max_tokens": 200}, {"max_tokens": 5}):
            learnt = self.rows(tokenizer, texts[:3], **changes)
            left_out = self.rows(tokenizer, texts[:3], train_on_eos=False, **changes)
            every = [token for row in learnt for token in row[1:]]
            assert every.count(tokenizer.eos_token_id) == 3
            assert [token for row in left_out for token in row[1:]] == [
                token for token in every if token != tokenizer.eos_token_id
            ]

    def test_long_texts_are_split_or_cut(self, tokenizer: Any, texts: list[str]) -> None:
        whole = self.rows(tokenizer, texts[:1], max_tokens=200)[0][1:]
        split = self.rows(tokenizer, texts[:1], max_tokens=5)
        assert [token for row in split for token in row[1:]] == whole
        assert all(row[0] == tokenizer.bos_token_id and len(row) <= 6 for row in split)
        assert self.rows(tokenizer, texts[:1], max_tokens=5, long_texts="cut") == split[:1]

    def test_texts_without_tokens_are_left_out(self, tokenizer: Any) -> None:
        assert self.rows(tokenizer, [""]) == []

    def test_the_context_bounds_a_row(self, gpt2: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(gpt2)
        context = model.config.max_position_embeddings
        assert text_window(model, 10_000) == context - 1
        assert text_window(model, 10) == 10


class TestSteps:
    @pytest.mark.parametrize("model", ["gpt2", "llama", "lstm"])
    def test_it_learns_and_the_result_loads(
        self, model: str, request: pytest.FixtureRequest, texts: list[str], tmp_path: Path
    ) -> None:
        folder = request.getfixturevalue(model)
        calls: list[tuple[int, int]] = []
        report = fine_tune(
            folder,
            texts,
            settings=quick(max_steps=40, learning_rate=2e-2),
            output=tmp_path / "out",
            seed=0,
            progress=lambda done, total: calls.append((done, total)),
        )
        assert report.losses[0] > 5.0  # random weights over 600 tokens
        assert report.loss < report.losses[0] - 1.0
        assert len(report.losses) == 40
        assert calls == [(step, 40) for step in range(1, 41)]
        assert not list(tmp_path.glob("*.partial*"))
        assert AutoTokenizer.from_pretrained(tmp_path / "out")("the river")["input_ids"]

    @pytest.mark.parametrize("max_tokens", [16, 512])  # by products, and by fused attention
    def test_bfloat16_is_close_to_float32(
        self, llama: Path, texts: list[str], tmp_path: Path, max_tokens: int
    ) -> None:
        exact, rounded = (
            fine_tune(
                llama,
                texts,
                settings=quick(precision=precision, max_tokens=max_tokens),
                output=tmp_path / precision,
                seed=0,
            ).losses
            for precision in ("float32", "bfloat16")
        )
        assert exact != rounded
        assert exact == pytest.approx(rounded, rel=5e-3)

    def test_every_row_once_per_epoch(self) -> None:
        seen = [row for step in range(4) for row in causal._rows_of_step(10, 3, step, 7)]
        again = [row for step in range(4, 8) for row in causal._rows_of_step(10, 3, step, 7)]
        assert sorted(seen) == sorted(again) == list(range(10))
        assert seen != again

    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
            ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]),
            ("cosine", [0.5, 1.0, 1.0, (1 + math.cos(math.pi / 4)) / 2, 0.5]),
        ],
    )
    def test_learning_rates(self, schedule: Any, expected: list[float]) -> None:
        settings = quick(schedule=schedule, warmup_steps=2)
        found = [causal._rate(settings, step, 6) for step in range(len(expected))]
        assert found == pytest.approx(expected)

    def test_a_loss_that_is_not_finite_stops_and_leaves_no_model(
        self, llama: Path, texts: list[str], tmp_path: Path
    ) -> None:
        with pytest.raises(TrainingError, match="lower learning_rate"):
            fine_tune(
                llama,
                texts,
                settings=quick(learning_rate=1e30, max_steps=20, max_gradient_norm=0.0),
                output=tmp_path / "a",
                seed=0,
            )
        assert not (tmp_path / "a").exists()


class TestResume:
    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(causal, "CHECKPOINT_SECONDS", 0.0)

    @staticmethod
    def kill_at(step: int) -> Any:
        def progress(done: int, total: int) -> None:
            if done == step:
                raise Killed

        return progress

    @pytest.mark.parametrize("rank", [0, 4])
    def test_a_killed_training_ends_with_the_same_bits(
        self, rank: int, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        # GPT-2 has dropout, and six steps are more than an epoch of five.
        settings = quick(max_steps=6, schedule="linear", lora_rank=rank)
        options: dict[str, Any] = {"settings": settings, "seed": 3}
        given = texts[:40]
        torch.manual_seed(1)  # the caller's random numbers do not matter
        whole = fine_tune(gpt2, given, output=tmp_path / "whole", **options)
        assert whole.losses[-1] < whole.losses[0]
        assert not same(gpt2, tmp_path / "whole")
        steps = []
        for stop in (2, 5):
            with pytest.raises(Killed):
                fine_tune(
                    gpt2, given, output=tmp_path / "cut", progress=self.kill_at(stop), **options
                )
            assert not (tmp_path / "cut").exists()
        report = fine_tune(
            gpt2,
            given,
            output=tmp_path / "cut",
            progress=lambda done, total: steps.append(done),
            **options,
        )
        assert steps == [6]  # the five before were not made again
        assert report.losses == whole.losses
        assert same(tmp_path / "whole", tmp_path / "cut")

    def test_a_finished_training_is_taken_as_it_is(
        self, gpt2: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"settings": quick(), "output": tmp_path / "a", "seed": 0}
        first = fine_tune(gpt2, texts[:9], **options)
        left = tmp_path / "a.partial"  # of a kill right after the end
        storage.last_checkpoint(left, {"of": "it"})
        (left / "teacher").mkdir()
        monkeypatch.setattr(causal, "_Training", lambda *args, **kwargs: pytest.fail("trained"))
        assert fine_tune(gpt2, texts[:9], **options) == first
        assert not left.exists()

    @pytest.mark.parametrize("change", ["texts", "settings", "seed", "teacher", "top_k"])
    def test_anything_else_starts_anew(
        self, gpt2: Path, llama: Path, texts: list[str], tmp_path: Path, change: str
    ) -> None:
        options: dict[str, Any] = {
            "texts": texts[:9],
            "settings": quick(),
            "seed": 0,
            "distillation": Distillation(llama),
        }
        with pytest.raises(Killed):
            fine_tune(gpt2, output=tmp_path / "a", progress=self.kill_at(2), **options)
        options |= {
            "texts": {"texts": texts[1:10]},
            "settings": {"settings": quick(learning_rate=1e-3)},
            "seed": {"seed": 1},
            "teacher": {"distillation": Distillation(gpt2)},
            "top_k": {"distillation": Distillation(llama, top_k=5)},
        }[change]
        steps: list[int] = []

        def first(done: int, total: int) -> None:
            steps.append(done)
            raise Killed

        with pytest.raises(Killed):
            fine_tune(gpt2, output=tmp_path / "a", progress=first, **options)
        assert steps == [1]


class TestTeacher:
    @pytest.mark.parametrize("top_k", [0, 4, 40])
    def test_the_divergence_is_that_of_what_is_kept(self, top_k: int) -> None:
        """Of all tokens, or of the largest, scaled to a sum of 1; columns beyond both are none."""
        generator = torch.Generator().manual_seed(5)
        student, teacher = 2.0 * torch.randn((2, 9, 31), generator=generator)
        found = divergence(
            torch.nn.functional.pad(student, (0, 3), value=50.0), teacher, top_k=top_k
        )
        kept = teacher.topk(top_k if 0 < top_k < 31 else 31, dim=-1).indices
        p = torch.softmax(teacher.double().gather(-1, kept), -1)
        q = torch.softmax(student.double(), -1).gather(-1, kept)
        assert float(found) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)

    def test_one_step_equals_distillation_by_hand(
        self, llama: Path, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        """Over all tokens of the batch, whatever its lengths and however it is split."""
        step = {"max_steps": 1, "batch_size": 100, "max_gradient_norm": 0.0, "weight_decay": 0.1}
        step["precision"] = "float32"
        for name, size in (("whole", 0), ("split", 4)):
            report = fine_tune(
                llama,
                texts[:6],
                settings=quick(**step, micro_batch_size=size),
                output=tmp_path / name,
                seed=0,
                distillation=Distillation(gpt2, of_text=1.0, of_teacher=0.4),
            )
        model, teacher = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            for folder in (llama, gpt2)
        )
        rows = training_rows(
            AutoTokenizer.from_pretrained(llama), texts[:6], settings=quick(), window=64
        )
        total = sum(len(row) - 1 for row in rows)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
        whole = 0.0
        for row in rows:
            ids = torch.tensor([row])
            logits = model(input_ids=ids).logits[0, :-1]
            with torch.no_grad():
                taught = torch.log_softmax(teacher(input_ids=ids).logits[0, :-1], -1)
            text = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            apart = (taught.exp() * (taught - torch.log_softmax(logits, -1))).sum()
            loss = (text + 0.4 * apart) / total
            loss.backward()
            whole += float(loss.detach())
        optimiser.step()
        assert report.losses[0] == pytest.approx(whole, rel=1e-4)
        for name in ("whole", "split"):
            found = weights(tmp_path / name)
            for key, value in model.named_parameters():
                # Adam's first step is as long for a gradient of rounding errors as for a real one.
                real = value.grad.abs() > 1e-3
                assert torch.allclose(found[key][real], value[real], atol=1e-4), key

    @pytest.mark.parametrize(
        ("taught", "settings", "words"),
        [
            ({"teacher": "privsyn-lm"}, {}, r"8192, of which \d+ are the same"),
            ({"teacher": "GPT2"}, {"max_tokens": 140}, "reads at most 127 tokens"),
            ({"teacher": "GPT2", "of_text": -0.5}, {}, "of_text must be"),
            ({"teacher": "GPT2", "top_k": -1}, {}, "top_k must be a whole number"),
        ],
    )
    def test_what_cannot_teach_is_refused(
        self,
        gpt2: Path,
        llama: Path,
        tmp_path: Path,
        taught: dict[str, Any],
        settings: dict[str, Any],
        words: str,
    ) -> None:
        given = {**taught, "teacher": taught["teacher"].replace("GPT2", str(gpt2))}
        with pytest.raises(ConfigError, match=words):
            fine_tune(
                llama,
                ["the river " * 100],
                settings=quick(**settings),
                output=tmp_path / "a",
                seed=0,
                distillation=Distillation(**given),
            )


class TestRefusals:
    def test_a_folder_that_is_no_model_is_never_replaced(
        self, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        (tmp_path / "notes.txt").write_text("mine")
        with pytest.raises(ModelError, match="not replaced"):
            fine_tune(gpt2, texts, settings=quick(), output=tmp_path, seed=0)
        assert (tmp_path / "notes.txt").read_text() == "mine"

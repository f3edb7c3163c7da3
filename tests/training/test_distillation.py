"""Learning from a teacher: the loss against brute force, resuming, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flower_privsyn.errors import ConfigError
from flower_privsyn.training import causal, teacher
from flower_privsyn.training.causal import fine_tune, training_rows
from flower_privsyn.training.causal_settings import CausalTraining
from flower_privsyn.training.distillation import Distillation
from flower_privsyn.training.teacher import TeacherTargets, mixed_losses, sparse_targets


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


class TestLoss:
    def draw(self, positions: int = 9, vocabulary: int = 31) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(5)
        student, teacher = 2.0 * torch.randn((2, positions, vocabulary), generator=generator)
        tokens = torch.randint(vocabulary, (positions,), generator=generator)
        return student, teacher, tokens

    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
    def test_all_probabilities_give_the_dense_loss_and_gradient(self, weight: float) -> None:
        student, teacher, tokens = self.draw()
        ids = torch.stack([torch.randperm(31) for _ in range(9)])
        logs = torch.log_softmax(teacher, -1).gather(-1, ids)
        given = student.clone().requires_grad_(True)
        found = mixed_losses(
            given,
            tokens,
            ids,
            logs,
            shares=(1 - weight, weight),
            top_k=31,
        )
        dense = student.clone().requires_grad_(True)
        text = torch.nn.functional.cross_entropy(dense, tokens, reduction="none")
        divergence = torch.nn.functional.kl_div(
            torch.log_softmax(dense, -1),
            torch.softmax(teacher, -1),
            reduction="none",
        ).sum(-1)
        expected = (1 - weight) * text + weight * divergence
        assert torch.allclose(found, expected, atol=1e-5)
        found.sum().backward()
        expected.sum().backward()
        assert given.grad is not None
        assert dense.grad is not None
        assert torch.allclose(given.grad, dense.grad, atol=1e-5)

    def test_few_tokens_give_the_dense_loss_and_gradient_on_average(self) -> None:
        student, teacher, tokens = self.draw()
        p = torch.softmax(teacher, -1)
        expected = (p * (p.log() - torch.log_softmax(student, -1))).sum(-1)
        given = student.clone().requires_grad_(True)
        steps = 400
        means = torch.zeros(9)
        for step in range(steps):
            uniforms = torch.full((9,), (step + 0.5) / steps)
            ids, logs = sparse_targets(teacher, uniforms, top_k=4, draws=3)
            assert ids.shape == (9, 7)
            assert torch.allclose(logs, torch.log_softmax(teacher, -1).gather(-1, ids), atol=1e-5)
            # What is drawn is none of the most probable.
            assert not (ids[:, :4, None] == ids[:, None, 4:]).any()
            found = mixed_losses(given, tokens, ids, logs, shares=(0.0, 1.0), top_k=4)
            (found.sum() / steps).backward()
            means += found.detach() / steps
        assert torch.allclose(means, expected, atol=0.02)
        assert given.grad is not None
        assert torch.allclose(given.grad, torch.softmax(student, -1) - p, atol=0.004)

    def test_a_student_that_agrees_has_no_loss(self) -> None:
        _, teacher, tokens = self.draw()
        ids, logs = sparse_targets(teacher, torch.full((9,), 0.3), top_k=4, draws=2)
        found = mixed_losses(teacher, tokens, ids, logs, shares=(0.0, 1.0), top_k=4)
        assert float(found.abs().max()) < 1e-5

    @pytest.mark.parametrize("rest", ["lumped", "dropped"])
    def test_all_of_the_vocabulary_is_the_dense_loss_whatever_the_rest(self, rest: Any) -> None:
        student, teacher, tokens = (value.double() for value in self.draw())
        ids, logs = sparse_targets(teacher, torch.zeros(9), top_k=31, draws=0)
        found = mixed_losses(
            student,
            tokens.long(),
            ids,
            logs,
            shares=(1.0, 0.01),
            top_k=31,
            rest=rest,
        )
        text = torch.nn.functional.cross_entropy(student, tokens.long(), reduction="none")
        p = torch.softmax(teacher, -1)
        divergence = (p * (p.log() - torch.log_softmax(student, -1))).sum(-1)
        assert torch.allclose(found, text + 0.01 * divergence, atol=1e-6, rtol=0)

    @pytest.mark.parametrize(("rest", "top_k"), [("lumped", 4), ("lumped", 31), ("dropped", 31)])
    def test_a_teacher_equal_to_the_student_has_no_gradient(self, rest: Any, top_k: int) -> None:
        _, teacher, tokens = self.draw()
        ids, logs = sparse_targets(teacher, torch.zeros(9), top_k=top_k, draws=0)
        given = teacher.clone().requires_grad_(True)
        found = mixed_losses(
            given,
            tokens,
            ids,
            logs,
            shares=(0.0, 1.0),
            top_k=top_k,
            rest=rest,
        )
        assert float(found.detach().abs().max()) < 1e-5
        found.sum().backward()
        assert given.grad is not None
        assert float(given.grad.abs().max()) < 2e-6

    def test_lumped_is_the_divergence_of_kept_tokens_and_one_class_of_others(self) -> None:
        student, teacher, tokens = self.draw()
        ids, logs = sparse_targets(teacher, torch.zeros(9), top_k=4, draws=0)
        options: dict[str, Any] = {"shares": (0.0, 1.0), "top_k": 4}
        found = mixed_losses(student, tokens, ids, logs, rest="lumped", **options)
        p, q = (torch.softmax(model, -1).gather(-1, ids) for model in (teacher, student))
        p, q = (torch.cat([kept, 1 - kept.sum(-1, keepdim=True)], -1) for kept in (p, q))
        assert torch.allclose(found, (p * (p / q).log()).sum(-1), atol=1e-5)

    def test_dropped_is_the_divergence_from_kept_tokens_scaled_to_one(self) -> None:
        student, teacher, tokens = self.draw()
        ids, logs = sparse_targets(teacher, torch.zeros(9), top_k=4, draws=0)
        options: dict[str, Any] = {"shares": (0.0, 1.0), "top_k": 4}
        found = mixed_losses(student, tokens, ids, logs, rest="dropped", **options)
        p = torch.softmax(teacher.gather(-1, ids), -1)
        q = torch.softmax(student, -1).gather(-1, ids)
        assert torch.allclose(found, (p * (p / q).log()).sum(-1), atol=1e-5)


class TestTargets:
    def read(self, model: Path, texts: list[str], folder: Path, **changes: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(model)
        rows = training_rows(tokenizer, texts, settings=quick(), window=64)
        settings = Distillation(model, **{"top_k": 5, **changes})
        return rows, TeacherTargets(
            rows,
            np.array([7, 0, 3, 11]),
            distillation=settings,
            vocabulary=len(tokenizer),
            folder=folder,
            device="cpu",
            bfloat16=False,
        )

    def test_they_are_the_teachers_probabilities_of_the_rows_that_are_visited(
        self, llama: Path, texts: list[str], tmp_path: Path
    ) -> None:
        rows, targets = self.read(llama, texts[:20], tmp_path)
        model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
        for row in (0, 3, 7, 11):
            with torch.no_grad():
                logits = model(torch.tensor([rows[row]])).logits[0, :-1]
            every = torch.log_softmax(logits, -1)
            start = targets._starts[row]
            place = slice(start, start + len(rows[row]) - 1)
            kept = torch.from_numpy(targets._logs[place].astype(np.float32))
            ids = torch.from_numpy(targets._ids[place].astype(np.int64))
            assert ids.shape == (len(rows[row]) - 1, 5 + 16)
            assert torch.allclose(kept[:, :5], every.topk(5, -1).values, atol=1e-2)
            assert torch.allclose(kept, every.gather(-1, ids), atol=1e-2)
        assert targets._ids.dtype == np.uint16
        assert len(targets._ids) == sum(len(rows[row]) - 1 for row in (0, 3, 7, 11))
        assert (np.delete(targets._starts, [0, 3, 7, 11]) == -1).all()

    @pytest.mark.parametrize("rest", ["drawn", "lumped"])
    def test_of_all_of_the_vocabulary_the_loss_is_the_dense_one(
        self, llama: Path, texts: list[str], tmp_path: Path, rest: str
    ) -> None:
        rows, targets = self.read(llama, texts[:20], tmp_path, top_k=10**6, beta=0.1, rest=rest)
        model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
        tokens = torch.tensor([rows[3]])
        with torch.no_grad():
            taught = torch.log_softmax(model(tokens).logits[0, :-1].double(), -1)
        logits = torch.randn(taught.shape, generator=torch.Generator().manual_seed(1))
        found = targets.losses(logits, tokens[0, 1:], [3])
        student = torch.log_softmax(logits.double(), -1)
        text = -student.gather(-1, tokens[0, 1:, None])[:, 0]
        expected = text + 0.1 * (taught.exp() * (taught - student)).sum(-1)
        assert float((found - expected).abs().max()) < 1e-3 * float(expected.abs().max())

    def test_a_finished_reading_serves_again_without_the_teacher(
        self, llama: Path, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, first = self.read(llama, texts[:20], tmp_path, rest="lumped")
        monkeypatch.setattr(teacher, "load_pretrained", lambda *_, **__: pytest.fail("loaded"))
        _, second = self.read(llama, texts[:20], tmp_path, rest="lumped", beta=0.001)
        assert np.array_equal(first._logs, second._logs)

    def test_rows_beyond_the_teachers_context_are_refused(self, gpt2: Path, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"at most 127 tokens .* lower max_tokens"):
            TeacherTargets(
                [[1] * 140],
                np.array([0]),
                distillation=Distillation(gpt2),
                vocabulary=600,
                folder=tmp_path,
                device="cpu",
                bfloat16=False,
            )


class TestFineTune:
    def test_without_weight_it_is_the_text_alone_to_the_bit(
        self, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        plain = fine_tune(gpt2, texts[:20], settings=quick(), output=tmp_path / "a", seed=1)
        nothing = Distillation("a teacher that is not asked", weight=0.0)
        other = fine_tune(
            gpt2,
            texts[:20],
            settings=quick(),
            output=tmp_path / "b",
            seed=1,
            distillation=nothing,
        )
        assert same(tmp_path / "a", tmp_path / "b")
        assert plain == other

    def test_one_step_equals_dense_distillation_by_hand(
        self, llama: Path, gpt2: Path, texts: list[str], tmp_path: Path
    ) -> None:
        """Over all tokens of the batch, whatever its lengths and however it is split."""
        settings = quick(max_steps=1, batch_size=100, max_gradient_norm=0.0, weight_decay=0.0)
        for name, changes in (("whole", {}), ("split", {"micro_batch_size": 4})):
            report = fine_tune(
                llama,
                texts[:6],
                settings=quick(
                    max_steps=1, batch_size=100, max_gradient_norm=0.0, weight_decay=0.0, **changes
                ),
                output=tmp_path / name,
                seed=0,
                distillation=Distillation(gpt2, weight=0.4, top_k=10_000),
            )
        model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
        teacher = AutoModelForCausalLM.from_pretrained(gpt2, dtype=torch.float32)
        rows = training_rows(
            AutoTokenizer.from_pretrained(llama), texts[:6], settings=settings, window=64
        )
        total = sum(len(row) - 1 for row in rows)
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
        whole = 0.0
        for row in rows:
            ids = torch.tensor([row])
            logits = model(input_ids=ids).logits[0, :-1]
            with torch.no_grad():
                taught = torch.log_softmax(teacher(input_ids=ids).logits[0, :-1], -1)
            text = torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum")
            student = torch.log_softmax(logits, -1)
            divergence = (taught.exp() * (taught - student)).sum()
            loss = (0.6 * text + 0.4 * divergence) / total
            loss.backward()
            whole += float(loss.detach())
        optimiser.step()
        assert report.first_loss == pytest.approx(whole, rel=1e-3)
        for name in ("whole", "split"):
            found = weights(tmp_path / name)
            for key, value in model.named_parameters():
                # Adam's first step is as long for a gradient of rounding errors as for a real one.
                real = value.grad.abs() > 1e-3
                assert torch.allclose(found[key][real], value[real], atol=1e-4), key

    @pytest.mark.parametrize("stop", ["teacher", "steps"])
    def test_an_interruption_changes_no_bit(
        self,
        gpt2: Path,
        llama: Path,
        texts: list[str],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        stop: str,
    ) -> None:
        monkeypatch.setattr(causal, "CHECKPOINT_SECONDS", 0.0)
        monkeypatch.setattr(teacher, "BLOCK_ROWS", 7)
        monkeypatch.setattr(teacher, "SAVE_SECONDS", 0.0)
        options: dict[str, Any] = {
            "settings": quick(max_steps=6),
            "seed": 3,
            "distillation": Distillation(llama, top_k=9),
        }
        given = texts[:40]
        whole = fine_tune(gpt2, given, output=tmp_path / "whole", **options)
        read: list[int] = []
        again: list[int] = []
        predictions = TeacherTargets._predictions

        class Killed(BaseException):
            """Ends a training as a signal would."""

        def watched(self: Any, network: Any, rows: Any, **kwargs: Any) -> Any:
            if stop == "teacher" and len(read) == 21:
                raise Killed
            read.extend(rows)
            return predictions(self, network, rows, **kwargs)

        def counted(self: Any, network: Any, rows: Any, **kwargs: Any) -> Any:
            again.extend(rows)
            return predictions(self, network, rows, **kwargs)

        def progress(done: int, total: int) -> None:
            if stop == "steps" and done == 4:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(TeacherTargets, "_predictions", watched)
            with pytest.raises(Killed):
                fine_tune(gpt2, given, output=tmp_path / "cut", progress=progress, **options)
        assert len(read) == (21 if stop == "teacher" else 40)
        monkeypatch.setattr(TeacherTargets, "_predictions", counted)
        report = fine_tune(gpt2, given, output=tmp_path / "cut", **options)
        assert report.losses == whole.losses
        assert same(tmp_path / "whole", tmp_path / "cut")
        # What the teacher had read in whole blocks was not read again.
        assert len(again) == (40 - 21 if stop == "teacher" else 0)

    def test_beta_is_another_loss_than_a_mixture_of_the_same_two_terms(
        self, gpt2: Path, llama: Path, texts: list[str], tmp_path: Path
    ) -> None:
        reports = [
            fine_tune(
                gpt2,
                texts[:12],
                settings=quick(max_steps=3),
                output=tmp_path / str(place),
                seed=0,
                distillation=Distillation(llama, top_k=10**6, rest="lumped", **shares),
            )
            for place, shares in enumerate(({"weight": 0.0}, {"weight": 1.0}, {"beta": 0.1}))
        ]
        text, divergence, both = (report.first_loss for report in reports)
        assert both == pytest.approx(text + 0.1 * divergence, rel=1e-5)

    def test_another_teacher_starts_anew(
        self, gpt2: Path, llama: Path, texts: list[str], tmp_path: Path
    ) -> None:
        first = Distillation(llama, top_k=4)
        steps: list[int] = []

        def train(taught: Distillation) -> None:
            fine_tune(
                gpt2,
                texts[:9],
                settings=quick(max_steps=2),
                output=tmp_path / "a",
                seed=0,
                distillation=taught,
                progress=lambda done, total: steps.append(done),
            )

        train(first)
        train(first)
        assert steps == [1, 2]  # the second was taken as it is
        train(Distillation(llama, top_k=5))
        train(Distillation(gpt2, top_k=5))
        assert steps == [1, 2, 1, 2, 1, 2]


class TestRefusals:
    def test_other_tokens(self, gpt2: Path, texts: list[str], tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"8192, of which \d+ are the same"):
            fine_tune(
                gpt2,
                texts,
                settings=quick(),
                output=tmp_path / "a",
                seed=0,
                distillation=Distillation("privsyn-lm"),
            )
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"weight": 1.5}, "weight must be a number between 0 and 1"),
            ({"rest": "kept"}, "rest must be"),
            ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ],
    )
    def test_settings(self, changes: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Distillation("privsyn-lm", **changes)

"""What `privsyn check` says of public text before a run is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flower_privsyn.run.method import Diagnostic
from tests.support.checked import Check, stops, users_file

ROOT = Path(__file__).parents[2]
JOINT_SKETCH = ROOT / "baselines" / "joint-sketch"


class TestPublicText:
    """What the users wrote would be published as it is, and no ledger would know."""

    TEXT = "the court ruled on the tax of this year and the next"

    @pytest.fixture
    def found(self, check: Check, tmp_path: Path) -> Callable[..., Diagnostic | None]:
        """What is said of documents that are named as public text, on a file of 300 users."""

        def run(
            documents: list[str], *, users: int = 300, text: str = self.TEXT
        ) -> Diagnostic | None:
            data, public = users_file(tmp_path, users=users, text=text), tmp_path / "public.jsonl"
            public.write_text("".join(json.dumps({"text": one}) + "\n" for one in documents))
            rows = ("least-row-tokens=1", "least-selected=1")  # whatever they are, enough
            values = ("epsilon=8", f"data={data}", f"public-text={public}", *rows)
            report = check(*values, app=JOINT_SKETCH)
            said = [one for one in report.diagnostics if one.topic == "public text"]
            assert len(said) <= 1
            return said[0] if said else None

        return run

    def mine(self, *numbers: int) -> list[str]:
        return [f"{self.TEXT} {number}" for number in numbers]

    def theirs(self, count: int) -> list[str]:
        return [f"{self.TEXT} of another land, in its year {number}" for number in range(count)]

    @pytest.mark.parametrize("text", [TEXT, "hi", "今天法院判决了"])
    def test_the_users_own_file_stops_a_run_whatever_its_texts_are_like(
        self, check: Check, tmp_path: Path, text: str
    ) -> None:
        data, link = users_file(tmp_path, text=text), tmp_path / "public.jsonl"
        link.symlink_to(data)
        for public in (data, link):
            said = stops(check(f"data={data}", f"public-text={public}", app=JOINT_SKETCH))
            assert said["public text"].startswith(
                f'public-text = "{public}" is the text of the users (data): what is chosen of it'
            )

    def test_other_text_is_public(self, found: Callable[..., Diagnostic | None]) -> None:
        assert found(self.theirs(100)) is None

    def test_a_few_quotations_are_worth_a_word_and_more_stop_the_run(
        self, found: Callable[..., Diagnostic | None]
    ) -> None:
        for leaked, level in ((3, "warning"), (4, "stops")):
            quoted = [f" The  {one[4:].upper()}" for one in self.mine(*range(leaked))]
            said = found(self.theirs(1000) + quoted)
            assert said is not None
            assert said.level == level
            assert f"holds {leaked} of the users' 300 longer texts and lines, in " in said.sentence
        # Of few users as well.
        said = found(self.theirs(1000) + self.mine(1), users=30)
        assert said is not None
        assert said.level == "warning"

    def test_a_sample_of_them_is_their_text_however_many_others_there_are(
        self, found: Callable[..., Diagnostic | None]
    ) -> None:
        said = found(self.mine(*range(10)), users=3000)
        assert said is not None
        assert said.level == "stops"
        said = found(self.theirs(3000) + self.mine(*range(10)), users=3000)
        assert said is not None
        assert said.level == "warning"

    def test_their_lines_in_one_document_are_found(
        self, found: Callable[..., Diagnostic | None]
    ) -> None:
        said = found(["\n".join(self.mine(*range(20)))])
        assert said is not None
        assert said.level == "stops"
        said = found(self.mine(*range(20)), text=f"Dear all,\n{self.TEXT}")
        assert said is not None
        assert said.level == "stops"

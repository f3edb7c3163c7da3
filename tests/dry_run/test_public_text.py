"""What `privsyn check` says of public text before a run is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checked import Check, stops, users_file

JOINT_SKETCH = Path(__file__).parents[2] / "baselines" / "joint-sketch"


@pytest.mark.parametrize("text", ["the court ruled on the tax of this year", "hi"])
def test_the_users_own_file_stops_a_run_whatever_its_texts_are_like(
    check: Check, tmp_path: Path, text: str
) -> None:
    data, link = users_file(tmp_path, text=text), tmp_path / "public.jsonl"
    link.symlink_to(data)
    for public in (data, link):
        said = stops(check(f"data={data}", f"public-text={public}", app=JOINT_SKETCH))
        assert said["public text"].startswith(f'public-text = "{public}" is the text of the users')


def test_a_folder_with_the_users_file_in_it_stops_a_run(check: Check, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / "public.txt").write_text("The court ruled on the tax of this year.")
    data = users_file(folder / "below")
    said = stops(check(f"data={data}", f"public-text={folder}", app=JOINT_SKETCH))
    assert said["public text"].startswith(f'public-text = "{folder}" is the text of the users')

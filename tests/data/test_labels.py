"""Labels from every kind of source to samples, and what is left out of a run with classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from flower_privsyn.data import Chunking, Users, load_users
from flower_privsyn.data.users import check_labels
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.privacy import skipping

ROWS = [
    {"client_id": "a", "text": "the first", "label": "good"},
    {"client_id": "b", "text": "the second", "label": "bad"},
    {"client_id": "a", "text": "the third", "label": " bad "},
    {"client_id": "c", "text": "the fourth"},
]


class TestSources:
    def test_whole_numbers_also_where_one_missing_value_made_floats_of_them(self) -> None:
        for stars in (
            pa.array([5, None, -1, None], pa.int64()),
            pa.array([5.0, float("nan"), -1.0, 1.5], pa.float32()),
        ):
            table = pa.Table.from_pylist(ROWS).append_column("stars", stars)
            assert load_users(table, label_column="stars").labels == ["5", "-1", None, None]
            assert load_users(table).labels is None

    def test_the_class_labels_of_a_data_set_are_named(self) -> None:
        classes = datasets.ClassLabel(names=["bad", "good"])
        string = datasets.Value("string")
        features = datasets.Features({"client_id": string, "text": string, "label": classes})
        values = {"client_id": ["a", "b", "c"], "text": ["x", "y", "z"], "label": [1, 0, -1]}
        found = datasets.Dataset.from_dict(values, features=features)
        assert load_users(found, label_column="label").labels == ["good", "bad", None]
        # The order of a data set is that of its index mapping, not of its table.
        part = datasets.DatasetDict({"train": found.select([2, 0])})
        assert load_users(part, label_column="label").labels == [None, "good"]

    def test_a_source_without_labels_says_why_when_it_is_asked(self, tmp_path: Path) -> None:
        path = tmp_path / "users.csv"
        path.write_text("client_id,text,kind\na,some words,x\n")
        users = load_users(path, label_column="label")
        assert users.labels is None
        with pytest.raises(DataError, match="classes .* label-column"):
            Chunking(classes=("x",)).documents(users)
        for bad in ("kind,kind", "kind,,label"):
            with pytest.raises(ConfigError, match="^label-column"):
                load_users(path, label_column=bad)


def everyone() -> Users:
    return Users(
        user_ids=("a", "b", "c"),
        texts=["one two three four five six", "seven eight", "nine ten", "eleven"],
        owners=np.array([0, 0, 1, 2]),
        labels=["good", "bad", "other", None],
    )


class TestCut:
    CUT = Chunking(max_tokens=4, classes=("bad", "good"))

    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def test_documents_of_another_class_do_not_count_and_their_users_stay(self) -> None:
        with skipping.counting() as tally:
            kept = self.CUT.asked(everyone())
        assert kept.user_ids == ("a", "b", "c")
        assert kept.labels == ["good", "bad"]
        assert str(tally).startswith("2 records of 2 users are left out")

    def test_a_run_is_stopped_where_no_document_is_of_a_class_and_by_no_single_one(self) -> None:
        users = everyone()
        check_labels([users], ("bad", "good"))
        says = r"this run, which has 'Bad', 'Good': they are labelled 'good', 'bad', 'other'\. "
        with pytest.raises(DataError, match=f"no document is of any class of {says}"):
            check_labels([users], ("Bad", "Good"))
        parts = [users.partition(partition_id=n, num_partitions=2) for n in range(2)]
        check_labels(parts, ("other",))  # a node may have none
        with pytest.raises(DataError, match="no document is of any class"):
            check_labels(parts, ("Bad",))
        none = replace(users, labels=[None] * 4)
        with pytest.raises(DataError, match="they have no labels"):
            check_labels([none], ("bad",))

    def test_every_sample_has_the_class_of_its_document(self) -> None:
        samples = self.CUT.samples(self.CUT.asked(everyone()), tokenizer=self.tokenizer())
        assert samples.texts == ["one two three four", "seven eight"]
        assert samples.labels is not None
        assert samples.labels.tolist() == [1, 0]
        whole = Chunking(max_tokens=4).samples(everyone(), tokenizer=self.tokenizer())
        assert whole.labels is None

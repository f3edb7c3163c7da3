"""Hugging Face data sets as sources of rows."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from flower_privsyn.data.columns import Cells, Columns
from flower_privsyn.data.read import rows_of_table, suffix_of
from flower_privsyn.errors import DataError, PrivsynError
from flower_privsyn.models.library import failures_as, import_extra

_PART: Final = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME: Final = re.compile(rf"({_PART}/{_PART})(?::({_PART})?)?(?::({_PART}))?")
# What `save_to_disk` writes.
_SAVED: Final = ("dataset_dict.json", "dataset_info.json")


# ---- where it is -------------------------------------------------------------------------------


def is_named(name: str) -> bool:
    """Whether these are the words that name a data set of the hub, owner/name:config:split."""
    return _HUB_NAME.fullmatch(name) is not None and suffix_of(Path(name)) is None


def from_hub(location: str, *, streaming: bool = False) -> Any:
    """A data set of the hub, or of the library's cache where there is no network.

    Args:
        location: owner/name:config:split (`is_named`); nothing between two colons is the only
            configuration, and the split is `train` where the name says none.
        streaming: Read its rows from the hub as they are asked for and store none; from the cache
            where `HF_HUB_OFFLINE` is set.

    Raises:
        DataError: There is no such data set, configuration or split.
        MissingExtraError: The library is not installed.
    """
    found = _HUB_NAME.fullmatch(location)
    assert found is not None
    name, config, split = found[1], found[2], found[3] or "train"
    library = _library()
    unknown = (
        f"{location} is neither a file nor a data set owner/name:CONFIG:SPLIT that the hub or the "
        "cache gives"
    )
    with failures_as(DataError, unknown), quiet(library):
        data_set = library.load_dataset(
            name, config, streaming=streaming and not library.config.HF_HUB_OFFLINE
        )
    return split_of(data_set, split, where=f"{name}:{config or ''}".rstrip(":"))


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return any(item.name in _SAVED for item in folder.iterdir())


def saved(folder: Path) -> Any:
    """What `save_to_disk` wrote; of several splits `train`: each of them is a folder in it.

    Raises:
        DataError: The folder is not complete, or has splits and no `train`.
        MissingExtraError: The library is not installed.
    """
    library = _library()
    try:
        found = library.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(
            f"{folder} is not a complete save_to_disk folder ({type(error).__name__})."
        ) from None
    return split_of(found, "train", where=str(folder))


def rows_of_tokens(
    rows: Callable[[], Iterator[dict[str, Any]]], *, folder: Path, fingerprint: str
) -> Any:
    """A data set of rows of tokens, made once in a folder and mapped from there.

    Args:
        rows: Makes them, one after another, each with `tokens`, `text` and `document`.
        folder: Where the data set is kept.
        fingerprint: Of what the rows are made of: the same finds them again.

    Raises:
        PrivsynError: What making them raises.
        OSError: The folder cannot be written.
        MissingExtraError: The library is not installed.
    """
    library = _library()
    features = library.Features(
        tokens=library.List(library.Value("int32")),
        text=library.Value("string"),
        document=library.Value("int64"),
    )
    try:
        with quiet(library):
            return library.Dataset.from_generator(
                rows, features=features, cache_dir=str(folder), fingerprint=fingerprint
            )
    except library.exceptions.DatasetGenerationError as error:
        cause = error.__cause__ or error
        if isinstance(cause, PrivsynError | OSError):
            raise cause from None
        raise


@contextlib.contextmanager
def quiet(library: Any) -> Iterator[None]:
    """Without the library's bars, and what it says of its cache."""
    shows_bars = not library.are_progress_bars_disabled()
    level = library.logging.get_verbosity()
    library.disable_progress_bars()
    library.logging.set_verbosity_error()
    try:
        yield
    finally:
        library.logging.set_verbosity(level)
        if shows_bars:
            library.enable_progress_bars()


def split_of(found: Any, split: str, *, where: str) -> Any:
    """One split of what may be several.

    Raises:
        DataError: There is none of this name.
    """
    if not isinstance(found, dict):
        return found
    if split not in found and hasattr(found, "with_format"):  # else a dict of something else
        raise DataError(
            f"{where} has no split {split!r}; its splits are {', '.join(map(repr, found))}."
        )
    return found.get(split, found)


def _library() -> Any:
    return import_extra("datasets", needed_by="a Hugging Face data set", extra="client")


# ---- what is in it -----------------------------------------------------------------------------


def rows_of(dataset: Any, columns: Columns, *, where: str) -> Iterator[tuple[str, Cells]]:
    """The rows of a `datasets.Dataset`, and what sentences call each.

    Raises:
        DataError: It is no data set, or one that streams, or has no such column.
    """
    import pyarrow as pa

    if not hasattr(dataset, "with_format") or not hasattr(dataset, "__len__"):
        raise DataError(
            "source must be a file, a folder, a data set name, a datasets.Dataset without "
            f"streaming, or a table, got {type(dataset).__name__}."
        )
    columns.check(dataset.column_names, where)
    present = [name for name in dataset.column_names if name in columns.wanted]
    # Not by the library's own columns, which are read row by row, seconds per 100,000 rows.
    table = dataset.select_columns(present).with_format("arrow")[:].select(present)
    for place, name in enumerate(present):
        if names := getattr(dataset.features[name], "names", None):
            # The library writes -1 for a label that is not known.
            known = map(dict(enumerate(names)).get, table[name].to_pylist())
            table = table.set_column(place, name, pa.array(known, pa.string()))
    return rows_of_table(table, columns, where)

"""Figures computed from private text, which carry a stamp that says so.

A figure that was computed from private text without noise is outside every privacy guarantee. It
helps to decide between methods in research, and must never be published, or used to steer a run, as
if the guarantee covered it. So it does not travel as a bare number: it is an attribute of a
`NotPrivate` record, whose every form (JSON, `dataclasses.asdict`, `repr`, `vars`) holds the stamp.
"""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from flower_privsyn.files import plain, write_json

#: What every figure that was computed from private text carries.
STAMP = "evaluation, not private: computed from private text outside the privacy budget"

#: What a subclass may not replace.
_SEALED = ("stamp", "to_dict", "write")


@dataclass(frozen=True, kw_only=True)
class NotPrivate:
    """Base of every record of figures that private text went into.

    The stamp is a field that no constructor sets, so it is in whatever is made of the record's
    fields, and JSON libraries refuse the record itself: the way out is `to_dict`, which is sealed.

    Attributes:
        stamp: `STAMP`, always.
    """

    # A factory, so that it is an attribute of the record and not only of its class.
    stamp: str = field(default_factory=lambda: STAMP, init=False)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a record that replaces the stamp or leaves it out."""
        super().__init_subclass__(**kwargs)
        for name in _SEALED:
            if name in cls.__dict__ or name in inspect.get_annotations(cls):
                raise TypeError(
                    f"{cls.__name__} must not replace {name}: what was computed from private text "
                    "says so wherever it is written"
                )

    @final
    def to_dict(self) -> dict[str, Any]:
        """All fields in types JSON knows, the stamp first; records inside keep their own."""
        return {"stamp": STAMP, **plain(asdict(self))}

    @final
    def write(self, path: Path) -> None:
        """Write the record as a JSON file, as a whole, for its owner alone."""
        write_json(path, self.to_dict(), for_the_owner=True)

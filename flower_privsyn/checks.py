"""What a value may be, and the one sentence that refuses it: "KEY must be ALLOWED, got VALUE".

A function checks its own arguments:

    rounds = check_whole("rounds", rounds, ge=1)

A class of settings declares each field once, its type, range, default and words in one place:

    @dataclass(frozen=True, kw_only=True)
    class Training(Settings):
        rate: Annotated[float, Gt(0)] = 0.1
        "step of gradient descent"
        epochs: PositiveInt = 1
        "passes over the texts"

and refuses what is not declared when it is made. The bounds are those of `annotated_types`. A class
that declares a field again takes over the bounds and the words that it does not give itself, so
another default is written `epochs: int = 3`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import textwrap
import typing
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from annotated_types import Ge, Gt, Le, Lt

from flower_privsyn.errors import ConfigError

PositiveInt = Annotated[int, Ge(1)]
NonNegativeInt = Annotated[int, Ge(0)]
PositiveFloat = Annotated[float, Gt(0)]
NonNegativeFloat = Annotated[float, Ge(0)]

#: Whole numbers of settings beyond it are not exact in JSON everywhere, so none is allowed unless
#: a field declares its own upper bound.
LARGEST_WHOLE: Final = 2**53

_KINDS: Final[Mapping[Any, str]] = {
    int: "a whole number",
    bool: "true or false",
    bool | Literal["auto"]: 'true, false or "auto"',
    str: "a string",
    str | Path: "a name or a path",
    tuple[str, ...]: "a list of strings that are not empty",
    Mapping[str, str]: "a table of strings",
}


def wrong_value(key: str, allowed: str, value: object) -> ConfigError:
    """The error for a value that is not allowed, to be raised.

    Args:
        key: what the setting or the argument is called.
        allowed: what may stand there, to follow "must be".
        value: what stood there.
    """
    return ConfigError(f"{key} must be {allowed}, got {value!r}")


@contextmanager
def raised_as(kind: type[Exception], *caught: type[Exception], prefix: str = "") -> Iterator[None]:
    """Raise a refusal of this block as an error of another kind, in its own words.

    Args:
        kind: of error.
        caught: the kinds that are raised so; any other stays what it is.
        prefix: what the sentence begins with.
    """
    try:
        yield
    except caught as error:
        raise kind(f"{prefix}{error}") from None


# ---- arguments of functions


def check_whole(key: str, value: object, *, ge: int | None = None, le: int | None = None) -> int:
    """Return a whole number in [ge, le], of Python or of numpy, as an int.

    Raises:
        ConfigError: it is anything else.
    """
    bounds = Bounds(ge=ge, le=le)
    if not isinstance(value, bool) and isinstance(value, Integral) and int(value) in bounds:
        return int(value)
    raise wrong_value(key, f"a whole number{bounds}", value)


def check_number(
    key: str,
    value: object,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
) -> float:
    """Return a finite real number between bounds, of Python or of numpy, as a float.

    Raises:
        ConfigError: it is anything else.
    """
    number, bounds = _as_float(value), Bounds(gt=gt, ge=ge, lt=lt, le=le)
    if number not in bounds:
        raise wrong_value(key, _number_in(bounds), value)
    return number


def check_choice(key: str, value: object, choices: Collection[str]) -> None:
    """Refuse a value outside a list of names.

    Raises:
        ConfigError: it is none of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise wrong_value(key, _one_of(choices), value)


# ---- fields of settings


class Described:
    """Values of several classes, each written as its class's name and its fields, and read back.

    A class of `told_by` is a kind; its dataclasses that give the attribute of that name are what
    can be read.
    """

    #: The attribute that holds a class's name, and the key under which it is written.
    told_by: ClassVar[str]
    _known: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Have `from_dict` know the class."""
        super().__init_subclass__(**kwargs)
        if "told_by" in cls.__dict__:
            cls._known = {}
        elif cls.told_by in cls.__dict__:
            cls._known[cls.__dict__[cls.told_by]] = cls

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able description that `from_dict` reads back."""
        values = {key: getattr(self, key) for key in _arguments(type(self))}
        return {self.told_by: getattr(self, self.told_by), **values}

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> Self:
        """Rebuild a value from `to_dict`; other keys are left alone.

        Raises:
            ConfigError: the name is unknown, or a value is out of range.
            KeyError: a value is missing.
        """
        kind = f"{cls.__name__.lower()} {cls.told_by}"
        name = description.get(cls.told_by)
        known = cls._known.get(name) if isinstance(name, str) else None
        if known is None:
            raise wrong_value(kind, _one_of(cls._known), name)
        values: dict[str, Any] = {}
        for key in _arguments(known):
            value = description[key]
            values[key] = tuple(value) if isinstance(value, list) else value
        found: Self = known(**values)
        return found


def _arguments(known: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(known) if field.init]


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """An interval of numbers, None where it has no bound.

    Attributes:
        gt: what numbers are above.
        ge: what they are at least.
        lt: what they are below.
        le: what they are at most; only where this is infinity is infinity itself in the interval.
    """

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __contains__(self, number: float) -> bool:
        """Whether a number is in the interval; NaN is in none."""
        return (
            (self.gt is None or number > self.gt)
            and (self.ge is None or number >= self.ge)
            and (self.lt is None or number < self.lt)
            and (self.le is None or number <= self.le)
            and (isinstance(number, int) or math.isfinite(number) or number == self.le)
        )

    def __str__(self) -> str:
        """The interval in words that follow "a number"; "" where every number is in it."""
        if self.le == math.inf:
            return f"{Bounds(gt=self.gt, ge=self.ge)} (inf for no limit)"
        if self.ge is not None and self.le is not None:
            return f" between {_shown(self.ge)} and {_shown(self.le)}"
        words = []
        if self.gt is not None:
            words.append(f"above {_shown(self.gt)}")
        if self.ge is not None:
            words.append(f"of at least {_shown(self.ge)}")
        if self.lt is not None:
            words.append(f"below {_shown(self.lt)}")
        if self.le is not None:
            words.append(f"{'' if words else 'of '}at most {_shown(self.le)}")
        return " " + " and ".join(words) if words else ""


@dataclass(frozen=True)
class OrZero:
    """In an annotation: 0 is allowed beside the interval, and means something of its own.

    Attributes:
        meaning: of 0, in words.
    """

    meaning: str


IN_PYTHON: Final = "in Python"
"""In an annotation: the field is a keyword of the class, and no key of a run configuration."""


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A field as its class declares it.

    Attributes:
        name: of the field.
        kind: its type, without None.
        optional: whether None is allowed too.
        bounds: of a number.
        zero: what 0 means where it is allowed beside the interval, else "".
        default: its value where none is given; MISSING where one must be.
        owner: the class that declares it.
        above: as the classes above that one declare it.
        in_python: whether it is a keyword of the class alone, and no key of a run configuration.
    """

    name: str
    kind: Any
    optional: bool
    bounds: Bounds
    zero: str
    default: Any
    owner: type
    above: Declaration | None
    in_python: bool = False

    @cached_property
    def choices(self) -> tuple[str, ...]:
        """The names to choose from, where the values are names."""
        if typing.get_origin(self.kind) is Literal:
            return typing.get_args(self.kind)
        if isinstance(self.kind, type) and issubclass(self.kind, Enum):
            return tuple(member.value for member in self.kind)
        return ()

    @cached_property
    def allowed(self) -> str:
        """What may stand here, to follow "must be"; "" for a type that is not checked."""
        if self.choices:
            return _one_of(self.choices)
        kind = _KINDS.get(self.kind, "")
        if self.kind is int:
            kind += str(self.bounds)
        elif self.kind is float:
            kind = _number_in(self.bounds)
        return f"0 ({self.zero}) or {kind}" if self.zero else kind

    @cached_property
    def words(self) -> str:
        """What the field is, for people: the docstring below it, or what a class above says."""
        own = _attribute_docstrings(self.owner).get(self.name, "")
        return own or (self.above.words if self.above is not None else "")

    def check(self, key: str, value: Any) -> Any:
        """Return a value as the field holds it: an int or a float, a path as text, a tuple.

        Args:
            key: what a sentence calls the field.
            value: what stands there.

        Raises:
            ConfigError: it is not allowed.
        """
        if not self.allowed or (value is None and self.optional):
            return value
        found = self._accepted(value)
        if found is None:
            allowed = self.allowed
            if self.kind is int and isinstance(value, Integral) and int(value) > LARGEST_WHOLE:
                allowed = f"a whole number{self._whole_bounds}"
            raise wrong_value(key, allowed, value)
        return found

    @cached_property
    def _whole_bounds(self) -> Bounds:
        """The bounds of a whole number, with the largest one where none is declared."""
        above = self.bounds.le is not None or self.bounds.lt is not None
        return self.bounds if above else dataclasses.replace(self.bounds, le=LARGEST_WHOLE)

    def _accepted(self, value: Any) -> Any:
        """A value as the field holds it, or None where it is not allowed."""
        if self.choices:
            found = value if isinstance(value, str) and value in self.choices else None
            return self.kind(found) if found and isinstance(self.kind, type) else found
        if self.kind is int:
            whole = isinstance(value, Integral) and not isinstance(value, bool)
            inside = whole and int(value) in self._whole_bounds
            return int(value) if inside or (whole and self.zero and value == 0) else None
        if self.kind is float:
            number = _as_float(value)
            return number if number in self.bounds or (self.zero and number == 0) else None
        if self.kind == bool | Literal["auto"]:
            return value if isinstance(value, bool) or value == "auto" else None
        if self.kind is str and isinstance(value, Path):  # as the package itself gives out
            return str(value)
        if self.kind in (bool, str, str | Path):
            return value if isinstance(value, self.kind) else None
        if self.kind == Mapping[str, str]:
            table = isinstance(value, Mapping) and all(
                isinstance(item, str) for pair in value.items() for item in pair
            )
            return value if table else None
        names = isinstance(value, list | tuple) and all(isinstance(v, str) and v for v in value)
        return tuple(value) if names else None


class Settings:
    """Base of dataclasses that declare what their fields may be, and refuse anything else.

    Values are checked when an instance is made, also of a subclass that is somebody else's
    dataclass. A subclass that has something to compare defines `__post_init__` and begins it with
    that of its base.

    Raises:
        ConfigError: a value is not allowed; the sentence names its key.
    """

    #: The fields by name, those of the classes above first.
    declared: ClassVar[Mapping[str, Declaration]] = MappingProxyType({})
    #: What a sentence calls a field before its name; "" for a key of a run configuration.
    _noun: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read what the class declares."""
        super().__init_subclass__(**kwargs)
        declared: dict[str, Declaration] = {}
        for above in reversed(cls.__mro__[1:]):  # as dataclasses take their fields over
            declared |= above.__dict__.get("declared", {})
        hints: dict[str, Any] = inspect.get_annotations(cls, eval_str=True)
        for name, hint in hints.items():
            if hint is ClassVar or typing.get_origin(hint) is ClassVar:
                continue
            default = cls.__dict__.get(name, MISSING)
            if isinstance(default, dataclasses.Field):
                made = default.default_factory
                default = default.default if made is MISSING else made()
            declared[name] = _declaration(cls, name, hint, default, declared.get(name))
        cls.declared = MappingProxyType(declared)

    def __post_init__(self) -> None:
        """Refuse what is not declared, and hold each value as its field declares it."""
        for name, declaration in type(self).declared.items():
            found = declaration.check(self._called(name), getattr(self, name))
            object.__setattr__(self, name, found)

    def _called(self, name: str) -> str:
        """What a sentence calls a field."""
        return f"{self._noun} {name}" if self._noun else name.replace("_", "-")


@cache
def _attribute_docstrings(cls: type) -> dict[str, str]:
    """The strings below the annotations of a class, read from its source."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(written, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(written.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def _declaration(
    owner: type, name: str, hint: Any, default: Any, above: Declaration | None
) -> Declaration:
    """Read one annotation; what it leaves out is as the class above has it."""
    metadata: tuple[Any, ...] = ()
    if typing.get_origin(hint) is Annotated:
        hint, *rest = typing.get_args(hint)
        metadata = tuple(rest)
    union = isinstance(hint, UnionType) or typing.get_origin(hint) is typing.Union
    options = typing.get_args(hint) if union else (hint,)
    kinds = [option for option in options if option is not NoneType]
    limits: dict[str, Any] = {}
    zero = ""
    in_python = IN_PYTHON in metadata or (above is not None and above.in_python)
    for item in metadata:
        if isinstance(item, OrZero):
            zero = item.meaning
        elif isinstance(item, Gt | Ge | Lt | Le):
            limits.update(dataclasses.asdict(item))
    bounds = Bounds(**limits)
    if above is not None and not limits:
        bounds, zero = above.bounds, above.zero
    return Declaration(
        name=name,
        kind=kinds[0] if len(kinds) == 1 else hint,
        optional=NoneType in options,
        bounds=bounds,
        zero=zero,
        default=default,
        owner=owner,
        above=above,
        in_python=in_python,
    )


# ---- words and numbers


def _as_float(value: object) -> float:
    """A real number as a float; NaN, which no interval holds, for anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int beyond every float
        return math.nan


def _number_in(bounds: Bounds) -> str:
    return f"a number{bounds}" if str(bounds) else "a finite number"


def _one_of(choices: Collection[str]) -> str:
    return "one of " + ", ".join(f'"{choice}"' for choice in choices)


def _shown(bound: float) -> str:
    """A bound as people write it: 1e6, not 1e+06, and 2^53, not 9007199254740992."""
    if isinstance(bound, int):
        size = abs(bound)
        power = size >= 2**31 and size & (size - 1) == 0
        return f"{'-' * (bound < 0)}2^{size.bit_length() - 1}" if power else str(bound)
    return f"{bound:g}".replace("e+", "e").replace("e0", "e").replace("e-0", "e-")

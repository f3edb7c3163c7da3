"""What a comparison will do, checked as a whole before any of it is done."""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from flower_privsyn.checks import check_whole
from flower_privsyn.data import Users, load_users
from flower_privsyn.data.users import check_labels
from flower_privsyn.dry_run import Report, Shelf, check_method, check_needs
from flower_privsyn.dry_run.libraries import require
from flower_privsyn.errors import ConfigError, DataError
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.evaluation.sealed import OPENED, only_sealed, without_sealed
from flower_privsyn.host.app import (
    App,
    ConfigValue,
    resolve_config,
    strategies_of,
    written_settings,
)
from flower_privsyn.private_path.needs import ModelKind, NeededModel, Needs
from flower_privsyn.strategies.by_name import listed_strategies
from flower_privsyn.strategies.catalogue import ComparedMethod, compared, entries
from flower_privsyn.training.causal_settings import CausalTraining

#: The app every run of a comparison is a run of; `baselines/compare` in the repository.
APP: Final = Path(__file__).parent / "app"

#: What the figures of every cell are made with.
_MEASURED_WITH: Final = ("sentence_transformers", "torch", "transformers", "sklearn")

#: Settings that name the models of what asks nobody; what they are is the catalogue's.
_REFERENCES_USE: Final[Mapping[str, tuple[tuple[str, ModelKind], ...]]] = {
    "expand-only": (("embedding-model", "embedding"), ("generator", "generator")),
    "distill-public": (("teacher", "causal"),),
    "dp-prompt": (("generator", "causal"),),
}

#: Where the users of a comparison are dealt to private and held-out: nobody's seed.
_SPLIT = b"privsyn split"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method at one epsilon with one seed.

    Attributes:
        method: its name.
        epsilon: the budget; 0.0 for methods that see no private text, None for infinity and for
            those whose epsilon is local.
        seed: of everything public.
    """

    method: str
    epsilon: float | None
    seed: int

    @property
    def name(self) -> str:
        """The folder of the cell."""
        budget = "inf" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.method}-eps-{budget}-seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison, complete: what `privsyn compare` was asked for.

    Attributes:
        app: what is run for every cell that asks users.
        config: folder of settings in the app's `conf/`.
        private: users that take part.
        held_out: users that never do; all figures are about them.
        source: what the data is called in the report.
        methods: in the order of the table.
        epsilons: budgets, ascending.
        seeds: of the repetitions.
        delta: of every run.
        downstream: causal language model that every method is to make better.
        training: how it is fine-tuned, the same for every method that fine-tunes.
        max_texts: most texts on either side of a comparison of distributions.
        settings: `key=value` or `method.key=value`.
        newer_than: only text dated after this day takes part, or "".
        opened: whether the held-out users are the sealed ones.
    """

    app: App
    config: str
    private: Users
    held_out: Users
    source: str
    methods: tuple[ComparedMethod, ...]
    epsilons: tuple[float, ...]
    seeds: tuple[int, ...]
    delta: float
    downstream: str
    training: CausalTraining
    max_texts: int = 1000
    settings: tuple[str, ...] = ()
    newer_than: str = ""
    opened: bool = False

    @property
    def stamp(self) -> str:
        """What every figure of the comparison carries."""
        return f"{STAMP}; {OPENED}" if self.opened else STAMP

    def cells(self) -> list[Cell]:
        """All cells, in the order in which they are run: a whole table per seed."""
        found: list[Cell] = []
        for number, seed in enumerate(self.seeds):
            for method in self.methods:
                if not method.asks_users and (method.seeded or number == 0):
                    budget = 0.0 if method.kind == "public text" else None
                    found.append(Cell(method=method.name, epsilon=budget, seed=seed))
            for epsilon in self.epsilons:
                found += [
                    Cell(method=method.name, epsilon=epsilon, seed=seed)
                    for method in self.methods
                    if method.asks_users
                ]
        return found

    def method(self, cell: Cell) -> ComparedMethod:
        """The method of a cell."""
        return next(method for method in self.methods if method.name == cell.method)

    def values(self, cell: Cell, data: Path) -> dict[str, ConfigValue]:
        """The run configuration of a cell.

        Args:
            cell: of a method that asks users, or that needs settings as they do.
            data: file of the private users.
        """
        method = self.method(cell)
        values = resolve_config(
            self.app, config_name=self._file_of(method), settings=self._settings_of(cell.method)
        )
        values |= self._decided(cell, data)
        trained = self._trained(method)
        values |= {key: set_ for key, set_ in trained.items() if key in self.app.defaults}
        return values

    def _file_of(self, method: ComparedMethod) -> str | None:
        """Its settings in the app; None for a reference without any."""
        named = f"{self.config}/{method.name}"
        written = (self.app.path / "conf" / f"{named}.toml").is_file()
        return named if written or method.asks_users else None

    def _trained(self, method: ComparedMethod) -> dict[str, ConfigValue]:
        """What a student of the server's own is, where the app has one: as everybody's is.

        A model that a method trains to write text is no student: another one learns from the text.
        What a method's own file says of its student stays: one that users have begun to train
        unlearns at the rate by which a public one learns.
        """
        if method.kind == "synthetic text":
            return {}
        trained: dict[str, ConfigValue] = {
            "model": self.downstream,
            "student-batch-size": self.training.batch_size,
            "student-learning-rate": self.training.learning_rate,
        }
        if self.training.max_steps:
            trained["student-steps"] = self.training.max_steps
        file = self._file_of(method)
        own = {} if file is None else written_settings(self.app, file)
        return {key: value for key, value in trained.items() if key == "model" or key not in own}

    def _decided(self, cell: Cell, data: Path) -> dict[str, ConfigValue]:
        """What the comparison decides, the same for every method."""
        return {
            "data": str(data),
            "client-column": "client_id",
            "text-column": "text",
            "date-column": "date",
            **({"label-column": "label"} if "label-column" in self.app.defaults else {}),
            "num-users": len(self.private),
            "held-out-fraction": 0.0,
            "newer-than": "",  # older text is not in the file
            "epsilon": float(cell.epsilon or 1.0),
            "noise-multiplier": -1.0,
            "delta": self.delta,
            "seed": cell.seed,
        }

    def _settings_of(self, method: str) -> list[str]:
        """The settings that concern a method, without its name."""
        found = []
        for setting in self.settings:
            key = setting.partition("=")[0].strip()
            owner, dot, rest = key.partition(".")
            if not dot:
                found.append(setting)
            elif owner == method:
                found.append(rest + setting[len(key) :])
        return found

    def check(self, shelf: Shelf) -> None:
        """Check every run of every cell before the first of them spends anything.

        Args:
            shelf: the models on this machine; one for several plans looks at each model once.

        Raises:
            ConfigError: A setting is unknown, out of range, or decided by the comparison itself.
        """
        names = {method.name for method in self.methods}
        cells = self.cells()
        decided = self._decided(cells[0], Path()).keys() | {"run-dir", "resume"}
        trained = {method.name: self._trained(method).keys() for method in self.methods}
        everywhere = decided.union(*trained.values())
        for setting in self.settings:
            key = setting.partition("=")[0].strip()
            owner, dot, rest = key.partition(".")
            if dot and owner not in names:
                raise ConfigError(
                    f"--set {setting}: {owner!r} is none of the methods compared, which are "
                    f"{', '.join(sorted(names))}"
                )
            ours = decided | trained[owner] if dot else everywhere
            if (rest if dot else key) in ours:
                raise ConfigError(
                    f"--set {setting}: {rest if dot else key} is the same for every method of a "
                    "comparison and has its own option"
                )
        report = Report()
        with report.refusals("figures"):
            require(_MEASURED_WITH)
        for cell in cells:
            if cell.seed == self.seeds[0]:
                self._check_cell(cell, report, shelf)
        if not report.ready:
            stops = (f"{one.topic}: {one.sentence}" for one in report.of_level("stops"))
            raise ConfigError("; ".join(dict.fromkeys(stops)))

    def _check_cell(self, cell: Cell, report: Report, shelf: Shelf) -> None:
        """Check settings, libraries and models of a cell, as `privsyn check` does of a run."""
        with report.refusals(cell.method):
            values, found = self.values(cell, Path("private.jsonl")), Report()
            if self.method(cell).asks_users:
                for settings, strategy in strategies_of(self.app, values):
                    if settings.class_names:
                        check_labels([self.private], settings.class_names)
                    made: Any = strategy
                    check_method(made(settings).method, settings, report=found, shelf=shelf)
            else:
                used = tuple(
                    NeededModel(setting=setting, name=str(values[setting]), kind=kind)
                    for setting, kind in _REFERENCES_USE.get(cell.method, ())
                    if values.get(setting)
                )
                key = str(values.get("generator-api-key-env", ""))
                check_needs(Needs(models=used), report=found, shelf=shelf, api_key_env=key)
            for finding in found.of_level("stops"):
                report.say(cell.method, finding.sentence, level="stops")

    def fingerprint(self) -> str:
        """What the figures of every cell depend on besides its own settings."""
        digest = hashlib.blake2b(digest_size=16)
        for users in (self.private, self.held_out):
            for part in (users.user_ids, users.texts, users.owners.tolist(), users.labels or ()):
                for item in part:
                    encoded = str(item).encode("utf-8", "surrogatepass")
                    digest.update(len(encoded).to_bytes(8, "big") + encoded)
            digest.update(b"|")
        return digest.hexdigest()


def methods_of(app: App, config: str) -> Mapping[str, ComparedMethod]:
    """The methods of an app: the references, and a file `conf/<config>/<method>.toml` for others.

    Args:
        app: `APP` or a copy of it with other settings.
        config: folder in its `conf/`.

    Returns:
        By name, in the order of a table; methods of one's own stand before the ceiling.

    Raises:
        ConfigError: There is no such folder, or a file in it names no strategy.
    """
    folder = app.path / "conf" / config
    if not folder.is_dir():
        sizes = sorted(entry.name for entry in (app.path / "conf").glob("*") if entry.is_dir())
        raise ConfigError(
            f"{app.name} has no settings {config!r}; it has {', '.join(sizes) or 'none'}"
        )
    found = {name: method for name, method in compared().items() if not method.asks_users}
    for file in sorted(folder.glob("*.toml")):
        if file.stem in found:
            continue
        try:
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{file} cannot be read: {error}") from error
        strategy = document.get("strategy", app.defaults.get("strategy"))
        if strategy not in entries():
            raise ConfigError(f"{file}: strategy must be {listed_strategies()}, got {strategy!r}")
        if entries()[str(strategy)].kind == "distances":
            raise ConfigError(
                f"{file}: {strategy} writes no text and trains no model, so that there is nothing "
                "to compare; it judges rounds of other methods where they ask for it"
            )
        known = compared().get(file.stem)
        if known is None:
            known = ComparedMethod(name=file.stem, title=file.stem, kind="synthetic text")
        found[file.stem] = replace(known, kind=entries()[str(strategy)].kind)
    order = [*compared()]
    ceiling = order.pop()
    own = sorted(found.keys() - compared().keys())
    return {name: found[name] for name in (*order, *own, ceiling) if name in found}


def split_users(users: Users, *, private: int, held_out: int) -> tuple[Users, Users]:
    """Draw users that take part and users that never do, by a hash of their ids.

    The same people are held out whatever the order of the file and the seed of a run.

    Args:
        users: all there are but the sealed ones.
        private: how many take part; 0 for all that are not held out.
        held_out: how many do not, >= 1.

    Raises:
        DataError: There are fewer.
    """
    if held_out < 1 or private < 0:
        raise ConfigError(
            f"held-out users must be at least 1 and private users at least 0, got {held_out} and "
            f"{private}"
        )
    if len(users) < held_out + max(private, 1):
        raise DataError(
            f"the data has {len(users)} users that are not sealed, fewer than the {held_out} to "
            f"hold out and the {max(private, 1)} to take part"
        )

    def place(user: str) -> bytes:
        return hashlib.blake2b(
            user.encode("utf-8", "surrogatepass"), digest_size=16, key=_SPLIT
        ).digest()

    order = sorted(range(len(users)), key=lambda index: place(users.user_ids[index]))
    last = held_out + private if private else len(users)

    def select(chosen: Sequence[int]) -> Users:
        mask = np.zeros(len(users), dtype=np.bool_)
        mask[list(chosen)] = True
        return users.select(mask)

    return select(order[held_out:last]), select(order[:held_out])


def joined(parts: Sequence[Users]) -> Users:
    """Users of several files; people who are in more than one of them are one user each.

    Raises:
        DataError: Some of the files have dates, or labels, and some have none.
    """
    if len(parts) == 1:
        return parts[0]
    if len({part.dates is None for part in parts}) > 1:
        raise DataError("some of the data files have dates and some have none: give the same kind")
    if len({part.labels is None for part in parts}) > 1:
        raise DataError("some of the data files have labels and some have none: give the same kind")
    ids = list(dict.fromkeys(user for part in parts for user in part.user_ids))
    number = {user: place for place, user in enumerate(ids)}
    rows = [
        (
            number[part.user_ids[owner]],
            text,
            None if part.dates is None else part.dates[place],
            None if part.labels is None else part.labels[place],
        )
        for part in parts
        for place, (owner, text) in enumerate(zip(part.owners.tolist(), part.texts, strict=True))
    ]
    rows.sort(key=lambda row: row[0])
    return Users(
        user_ids=tuple(ids),
        texts=[text for _, text, _, _ in rows],
        owners=np.array([owner for owner, _, _, _ in rows], dtype=np.int64),
        dates=None if parts[0].dates is None else [day for _, _, day, _ in rows],
        labels=None if parts[0].labels is None else [label for *_, label in rows],
    )


def make_plans(
    *,
    app: App,
    data: Sequence[str],
    epsilons: Sequence[float],
    methods: Sequence[str] = (),
    seeds: int = 3,
    config: str = "cpu",
    held_out: str | None = None,
    held_out_users: int | None = None,
    users: Sequence[int] = (0,),
    delta: float | None = None,
    newer_than: str = "",
    downstream: str = "privsyn-tiny",
    training: CausalTraining | None = None,
    max_texts: int = 1000,
    settings: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    open_sealed: bool = False,
) -> list[Plan]:
    """Read the users, choose what is compared, and check all of it: a plan for each size.

    Args:
        app: what is run; see `methods_of`.
        data: files, folders or data set names, each as `load_users` takes it.
        epsilons: budgets, each > 0.
        methods: names; empty for all of the app but those that the catalogue wants to be named.
        seeds: repetitions, >= 1.
        config: folder of settings in the app's `conf/`.
        held_out: file of users that do not take part, in place of `held_out_users`.
        held_out_users: drawn from the data; None for 500, or a fifth where there are fewer than
            2,500 users.
        users: how many take part, of each plan; 0 for all. The same are held out in all plans.
        delta: None for 1 / (n ln n) of the n users that take part.
        newer_than: only text dated after this day takes part and is held out; "" for all.
        downstream: causal language model.
        training: how it is fine-tuned.
        max_texts: see `Plan`.
        settings: see `Plan`.
        columns: names of the columns and a partitioner, for `load_users`.
        open_sealed: hold out the sealed users and no others; the same users take part.

    Raises:
        ConfigError: Something asked for is not possible; the sentence names it.
        DataError: The data cannot be read or is too little.
    """
    budgets = _budgets(epsilons)
    check_whole("--seeds", seeds, ge=1)
    read = partial(_read, newer_than=newer_than, columns=columns or {})
    chosen = _chosen(app, config, methods)
    every = joined([read(source) for source in data])
    apart = None if held_out is None else read(held_out)
    plans, shelf = [], Shelf()
    for wanted in users:
        private, others = _both_groups(
            every, apart, aside=held_out_users, users=wanted, open_sealed=open_sealed
        )
        size = len(private)
        plan = Plan(
            app=app,
            config=config,
            private=replace(private, dates=None),
            held_out=replace(others, dates=None),
            source=", ".join(Path(source).name for source in data),
            methods=chosen,
            epsilons=budgets,
            seeds=tuple(range(seeds)),
            delta=1.0 / (size * math.log(size)) if delta is None else delta,
            downstream=downstream,
            training=training or CausalTraining(),
            max_texts=max_texts,
            settings=tuple(settings),
            newer_than=newer_than,
            opened=open_sealed,
        )
        plan.check(shelf)
        plans.append(plan)
    return plans


def _read(source: str, *, newer_than: str, columns: Mapping[str, str]) -> Users:
    found = load_users(source, **columns, strict=True)
    found.check_documents(dated=bool(newer_than))
    return found.newer_than(newer_than) if newer_than else found


def _budgets(epsilons: Sequence[float]) -> tuple[float, ...]:
    budgets = tuple(sorted({float(epsilon) for epsilon in epsilons}))
    if not budgets or not all(math.isfinite(value) and value > 0 for value in budgets):
        raise ConfigError(
            f"--epsilon must be numbers > 0, got {', '.join(map(str, epsilons)) or 'none'}; the "
            "floor (epsilon 0) and the ceiling (infinity) are the methods public-only and "
            "finetune-private"
        )
    return budgets


def _chosen(app: App, config: str, names: Sequence[str]) -> tuple[ComparedMethod, ...]:
    """The methods of these names, in the order of the table."""
    known = methods_of(app, config)
    for name in names:
        if name not in known:
            raise ConfigError(
                f"there is no method {name!r}; {app.name} with the settings {config!r} has "
                f"{', '.join(known)}"
            )
    wanted = set(names) or {name for name, one in known.items() if one.by_default}
    return tuple(method for name, method in known.items() if name in wanted)


def _both_groups(
    every: Users, others: Users | None, *, aside: int | None, users: int, open_sealed: bool
) -> tuple[Users, Users]:
    """Users that take part and users that never do; the sealed ones are neither.

    Args:
        every: of the data.
        others: users of another file that are held out; None to hold out some of `every`.
        aside: how many of `every` to hold out; None for a default.
        users: that take part; 0 for all.
        open_sealed: hold out the sealed users in place of others.
    """
    name = "--data" if others is None else "--held-out"
    closed = only_sealed(every if others is None else others, what=name) if open_sealed else None
    every = without_sealed(every, what="--data")
    if others is None:
        if aside is None:
            aside = 500 if len(every) >= 2500 else max(1, len(every) // 5)
        private, others = split_users(every, private=users, held_out=aside)
    else:
        if aside is not None:
            raise ConfigError("give either --held-out or --held-out-users, not both")
        others = others if open_sealed else without_sealed(others, what="--held-out")
        if both := set(others.user_ids) & set(every.user_ids):
            raise ConfigError(
                f"{len(both)} users of --held-out are in --data as well: held-out users must not "
                "take part"
            )
        private = split_users(every, private=users, held_out=1)[0] if users else every
    if len(private) < 2:
        raise DataError(f"{len(private)} users take part, at least 2 are needed")
    return private, others if closed is None else closed


def settings_of(values: Mapping[str, ConfigValue]) -> dict[str, Any]:
    """The part of a run configuration that says what a cell is, without where it lies."""
    return {key: value for key, value in values.items() if key not in ("data", "run-dir", "resume")}

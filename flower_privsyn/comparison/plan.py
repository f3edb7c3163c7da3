"""What a comparison will do, checked as a whole before any of it is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from flower_privsyn.catalogue import (
    CatalogueEntry,
    compared,
    entries,
    listed_strategies,
    strategy_named,
)
from flower_privsyn.checks import check_whole
from flower_privsyn.comparison.people import OPENED, People
from flower_privsyn.data import Chunking
from flower_privsyn.dry_run import Report, check_plan, check_setup
from flower_privsyn.dry_run.people import BUNDLED, check_public_text, people_of
from flower_privsyn.errors import ConfigError
from flower_privsyn.evaluation.distribution import library
from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.files import expanded, read_json
from flower_privsyn.host.app import (
    App,
    ConfigValue,
    resolve_config,
    strategy_of_app,
    written_settings,
)
from flower_privsyn.run.method import need
from flower_privsyn.run.settings import CLIENT_KEYS, PrivateSumConfig, unknown_keys
from flower_privsyn.run_config import unfolded
from flower_privsyn.training.causal import CausalTraining
from flower_privsyn.training.distillation import check_same_tokens

#: The app every run of a comparison is a run of; `baselines/compare` in the repository.
APP: Final = Path(__file__).parent / "app"

#: What asks nobody, and is in every table: the model as it is; public text at random; the same
#: taught by a larger public model; the text of a writer that is told the domain; and public text
#: that is chosen by what this one writes.
FLOORS: Final = (
    "public-only",
    "random-public",
    "distill-public",
    "told-domain",
    "prompt-chosen",
)

#: The shortest training of a student.
_SHORTEST: Final = 100

#: `synthesis` of a method that has a generator write after what its release chose.
_WRITTEN: Final = "written"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One method at one epsilon with one seed.

    Attributes:
        method: what is run, or made.
        epsilon: the budget; 0.0 for methods that see no private text, None for infinity and for
            those whose epsilon is local.
        seed: of everything public.
    """

    method: CatalogueEntry
    epsilon: float | None
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        # All digits: its neighbours have folders of their own.
        budget = "inf" if self.epsilon is None else repr(self.epsilon).removesuffix(".0")
        return f"{self.method.name}-eps-{budget}-seed-{self.seed}"

    def to_dict(self) -> dict[str, Any]:
        """Which cell it is, for whoever reads the table without the plan."""
        return {
            "method": self.method.name,
            "title": self.method.title,
            "kind": self.method.kind,
            "epsilon": self.epsilon,
            "seed": self.seed,
            "folder": f"cells/{self.name}",
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A comparison, complete: what `privsyn compare` was asked for.

    Attributes:
        app: what is run for every cell that asks users.
        configs: folders of settings in the app's `conf/`; of a method that is in several, the first
            counts.
        people: who takes part, and who is held out.
        methods: in the order of the table.
        epsilons: budgets, ascending.
        seeds: repetitions, of the seeds 0, 1 and so on.
        delta: of every run.
        downstream: causal language model that every method is to make better.
        training: how it is fine-tuned, the same for every method that fine-tunes; its steps are
            the most.
        settings: `key=value` or `method.key=value`.
    """

    app: App
    configs: tuple[str, ...]
    people: People
    methods: tuple[CatalogueEntry, ...]
    epsilons: tuple[float, ...]
    seeds: int
    delta: float
    downstream: str
    training: CausalTraining
    settings: tuple[str, ...] = ()

    @property
    def stamp(self) -> str:
        """What every figure of the comparison carries."""
        return f"{STAMP}; {OPENED}" if self.people.opened else STAMP

    @property
    def lengths(self) -> tuple[int, ...]:
        """Steps that a student is trained in, each of them with a schedule of its own.

        From 100 on three times as many up to the most; the best on tuning users counts.
        """
        most, found = self.training.max_steps, [_SHORTEST]
        while found[-1] < most:
            found.append(3 * found[-1])
        return (*found[:-1], most)

    def cells(self) -> list[Cell]:
        """All cells, in the order in which they are run: a whole table per seed.

        What no seed changes is run once, as seed 0.
        """
        found: list[Cell] = []
        for seed in range(self.seeds):
            for method in self.methods:
                if not method.asks_users and (method.seeded or seed == 0):
                    budget = 0.0 if method.kind == "public text" else None
                    found.append(Cell(method=method, epsilon=budget, seed=seed))
            for epsilon in self.epsilons:
                found += [
                    Cell(method=method, epsilon=epsilon, seed=seed)
                    for method in self.methods
                    if method.asks_users
                ]
        return found

    def values(self, cell: Cell, data: Path) -> dict[str, ConfigValue]:
        """The run configuration of a cell.

        Args:
            cell: of a method that asks users, or that needs settings as they do.
            data: folder of the users' files.
        """
        method = cell.method
        defaults = self._defaults(method)
        values = resolve_config(
            self.app,
            config_name=self._file_of(method),
            settings=self._settings_of(method.name, defaults),
        )
        if method.import_path and self._file_of(method) is None:
            values["strategy"] = method.import_path
        trained = {key: set_ for key, set_ in self._trained(method).items() if key in defaults}
        return {**defaults, **values, **self._decided(cell, data), **trained}

    def common_values(self) -> dict[str, ConfigValue]:
        """The settings that no method has for itself: what held-out text is cut and embedded by.

        A method may cut its users' text otherwise, and is measured on the same text as its rivals.
        """
        common = _stated(PrivateSumConfig)
        return {**common, **resolve_config(self.app, settings=self._settings_of("", common))}

    def own_settings(self, cell: Cell) -> dict[str, ConfigValue]:
        """Of a cell's run configuration what is not the app's, nor decided by the comparison.

        Args:
            cell: of this plan.

        Returns:
            By their keys; of a setting that names a file or folder the last part of its name.
        """
        method = cell.method
        given = {**self._defaults(method), **self.app.defaults, **self._trained(method)}
        decided = self._decided(cell, Path())
        return {
            key: Path(value).name if isinstance(value, str) and Path(value).exists() else value
            for key, value in self.values(cell, Path()).items()
            if key not in decided and value != given.get(key)
        }

    def _defaults(self, method: CatalogueEntry) -> dict[str, ConfigValue]:
        """Every key of a method with its default; of a reference those of what writes or learns."""
        strategies = [entries()[name].strategy for name in ("joint-sketch", "private-evolution")]
        found: dict[str, ConfigValue] = {}
        for strategy in [method.strategy] if method.import_path else strategies:
            found |= _stated(strategy.config_class)
        return found

    def _file_of(self, method: CatalogueEntry) -> str | None:
        """Its settings in the app; None for a reference without any."""
        files = [f"{config}/{method.name}" for config in self.configs]
        written = [name for name in files if (self.app.path / "conf" / f"{name}.toml").is_file()]
        return next(iter(written), None)

    def _trained(self, method: CatalogueEntry) -> dict[str, ConfigValue]:
        """What a student of the server's own is, where the app has one: as everybody's is.

        A model that a method trains to write text is no student: another one learns from the text.
        What a method's own file says of its student stays: one that users have begun to train
        unlearns at the rate by which a public one learns.
        """
        if method.kind == "synthetic text":
            return {}
        trained: dict[str, ConfigValue] = {
            "model": self.downstream,
            "training-batch-size": self.training.batch_size,
            "learning-rate": self.training.learning_rate,
        }
        if method.kind == "chosen text":
            trained["student-steps"] = self.lengths[0]
        file = self._file_of(method)
        own = {} if file is None else unfolded(written_settings(self.app, file))
        return {key: value for key, value in trained.items() if key == "model" or key not in own}

    def _decided(self, cell: Cell, data: Path) -> dict[str, ConfigValue]:
        """What the comparison decides, the same for every method."""
        return {
            "data": str(data / f"private-{self.people.group_of(cell.seed)}.jsonl"),
            "client-column": "client_id",
            "text-column": "text",
            "date-column": "date",
            **({"label-column": "label"} if "label-column" in self.app.defaults else {}),
            "num-users": self.people.number,
            "held-out-fraction": 0.0,
            "min-date": "",  # older text is not in the file
            "epsilon": float(cell.epsilon or 1.0),
            "noise-multiplier": -1.0,
            "delta": self.delta,
            "seed": cell.seed,
            "run-dir": "",
            "resume": False,
        }

    def _settings_of(self, method: str, keys: Collection[str]) -> list[str]:
        """The settings that concern a method of these keys, without its name."""
        found = []
        for setting in self.settings:
            key, sign, text = setting.partition("=")
            owner, dot, rest = key.strip().partition(".")
            if not dot and key.strip() in {*keys, *CLIENT_KEYS}:
                found.append(setting)
            elif owner == method:
                found.append(rest + sign + text)
        return found

    def check(self, finished: Collection[str] = ()) -> None:
        """Check every run of every cell before the first of them spends anything.

        Args:
            finished: names of cells that are; a method all of whose cells are is not set up again.

        Raises:
            ConfigError: A setting is unknown, out of range, or decided by the comparison itself.
        """
        names = {method.name for method in self.methods}
        cells = self.cells()
        decided = set(self._decided(cells[0], Path()))
        trained = {method.name: self._trained(method).keys() for method in self.methods}
        everywhere = decided.union(*trained.values())
        known = CLIENT_KEYS.union(*(self._defaults(method) for method in self.methods))
        for setting in self.settings:
            owner, dot, rest = (key := setting.partition("=")[0].strip()).partition(".")
            if dot and owner not in names:
                raise ConfigError(
                    f"--set {setting}: {owner!r} is none of the methods compared, which are "
                    f"{', '.join(sorted(names))}"
                )
            if (rest if dot else key) in (decided | trained[owner] if dot else everywhere):
                raise ConfigError(
                    f"--set {setting}: this is the same for every method of a comparison, and said "
                    "by an option of the command or by nobody"
                )
            if (rest if dot else key) not in known:
                raise ConfigError(unknown_keys([rest if dot else key], known, f"--set {setting}"))
        library("sklearn")  # which figures are made with
        reports, setups = list[tuple[str, Report]](), list[Callable[[], None]]()
        to_run = {cell.method.name for cell in cells if cell.name not in finished}
        for cell in cells:
            # Where the smallest budget is enough against the noise, every larger one is.
            if cell.seed == 0 and cell.epsilon in (0.0, None, self.epsilons[0]):
                reports.append((cell.method.name, report := Report()))
                with report.refusals(cell.method.name):
                    set_up = self._check_cell(cell, report)
                    if set_up is not None and cell.method.name in to_run:
                        setups.append(set_up)
        # Loading models takes a while: what stops one of the runs without them is said first.
        for set_up in setups if all(report.ready for _, report in reports) else ():
            set_up()
        stops = [
            f"{name}: {one.sentence}"
            for name, report in reports
            for one in report.of_level("stops")
        ]
        if stops:
            raise ConfigError("; ".join(dict.fromkeys(stops)))

    def _check_cell(self, cell: Cell, report: Report) -> Callable[[], None] | None:
        """Check a cell as `privsyn check` does a run, but for setting it up.

        Returns:
            What sets it up; None of what asks nobody, which is run before all others.
        """
        values = self.values(cell, Path())
        if not cell.method.asks_users:
            self._check_reference(cell.method.name, values)
            return None
        settings, strategy = need(strategy_of_app(self.app, values))
        people = people_of(
            [self.people.private(cell.seed)], chunking=Chunking.of(settings.to_dict())
        )
        method = strategy(settings).method
        plan = check_plan(method, settings, people, report=report, data=self.people.source)
        if plan is None:
            return None
        return partial(check_setup, method, settings, plan, people, report=report)

    def _check_reference(self, name: str, values: Mapping[str, ConfigValue]) -> None:
        """Check what asks nobody: the text it reads, and who writes or teaches."""
        public = str(values.get("public-text", BUNDLED))
        check_public_text(public, data=self.people.source)
        generator = str(values.get("generator", ""))
        if name == "expand-private" and "://" in generator:
            raise ConfigError(
                f'generator = "{generator}" is another machine or another process: '
                "private text is expanded by a model that runs here, or not at all"
            )
        if name == "distill-public":
            if not values.get("teacher"):
                raise ConfigError(
                    'teacher = "" teaches nobody: --set distill-public.teacher=NAME names one'
                )
            check_same_tokens(self.downstream, str(values["teacher"]), setting="teacher")


def methods_of(app: App, *configs: str) -> Mapping[str, CatalogueEntry]:
    """The methods of an app: the references, and a file `conf/<config>/<method>.toml` for others.

    Args:
        app: `APP` or a copy of it with other settings.
        configs: folders in its `conf/`; of a method that is in several, the first counts.

    Returns:
        By name, in the order of a table; methods of one's own stand before the ceiling.

    Raises:
        ConfigError: There is no such folder, or a file in it names no strategy.
    """
    sizes = sorted(entry.name for entry in (app.path / "conf").glob("*") if entry.is_dir())
    for config in configs:
        if config not in sizes:
            raise ConfigError(
                f"{app.name} has no settings {config!r}; it has {', '.join(sizes) or 'none'}"
            )
    found = {name: method for name, method in compared().items() if not method.asks_users}
    for config in configs:
        for file in sorted((app.path / "conf" / config).glob("*.toml")):
            if file.stem not in found:
                found[file.stem] = _method_of(app, file)
    return {name: found[name] for name in sorted(found, key=place)}


def place(method: str) -> tuple[float, str]:
    """Where a method stands in a table: those of one's own before the ceiling, by their names."""
    order = [*compared()]
    return (order.index(method) if method in order else len(order) - 1.5), method


def _method_of(app: App, file: Path) -> CatalogueEntry:
    """The method that a file of settings makes of its strategy."""
    values = resolve_config(app, config_name=f"{file.parent.name}/{file.stem}")
    strategy = values.get("strategy")
    if (entry := entries().get(str(strategy))) is None:
        raise ConfigError(f"{file}: strategy must be {listed_strategies()}, got {strategy!r}")
    if entry.kind == "distances":
        raise ConfigError(
            f"{file}: {strategy} writes no text and trains no model, so that there is nothing "
            "to compare; it judges rounds of other methods where they ask for it"
        )
    # A joint sketch that writes is measured by its text, and not by the student beside it.
    writes = entry.kind == "chosen text" and values.get("synthesis") == _WRITTEN
    kind = "synthetic text" if writes else entry.kind
    known = compared().get(file.stem, CatalogueEntry(name=file.stem, title=file.stem, kind=kind))
    return replace(known, kind=kind, import_path=entry.import_path)


def make_plan(
    *,
    app: App,
    people: People,
    epsilons: Sequence[float],
    methods: Sequence[str] = (),
    seeds: int = 3,
    configs: Sequence[str] = ("cpu",),
    delta: float | None = None,
    downstream: str = "privsyn-tiny",
    training: CausalTraining | None = None,
    public_text: str | None = None,
    settings: Sequence[str] = (),
    folder: Path | None = None,
) -> Plan:
    """Choose what is compared, and check all of it.

    Args:
        app: what is run; see `methods_of`.
        people: who takes part, and who is held out.
        epsilons: budgets, each > 0.
        methods: names, to which the floors are added; empty for all of the app but those that the
            catalogue wants to be named.
        seeds: repetitions, >= 1.
        configs: see `Plan`.
        delta: None for 1 / (n ln n) of the n users that take part.
        downstream: causal language model.
        training: how it is fine-tuned.
        public_text: of all methods, `public-text` of their settings; None for the app's.
        settings: see `Plan`.
        folder: of an earlier comparison, whose finished cells need no models.

    Raises:
        ConfigError: Something asked for is not possible; the sentence names it.
    """
    budgets = tuple(sorted({float(epsilon) for epsilon in epsilons}))
    if not budgets or not all(math.isfinite(value) and value > 0 for value in budgets):
        raise ConfigError(
            f"--epsilon must be numbers > 0, got {', '.join(map(str, epsilons)) or 'none'}; the "
            "floor (epsilon 0) and the ceiling (infinity) are the methods public-only and "
            "finetune-private"
        )
    check_whole("--seeds", seeds, ge=1)
    size = people.number
    public = () if public_text is None else (f"public-text={public_text}",)
    plan = Plan(
        app=app,
        configs=tuple(configs),
        people=people,
        methods=_chosen(app, configs, methods),
        epsilons=budgets,
        seeds=seeds,
        delta=1.0 / (size * math.log(size)) if delta is None else delta,
        downstream=downstream,
        training=training or CausalTraining(max_steps=2700, train_on_eos=False),
        settings=(*public, *settings),
    )
    before = [] if folder is None else (expanded(folder) / "cells").glob("*/cell.json")
    plan.check({file.parent.name for file in before if read_json(file).get("status") == "finished"})
    return plan


def _chosen(app: App, configs: Sequence[str], names: Sequence[str]) -> tuple[CatalogueEntry, ...]:
    """The methods of these names, in the order of the table."""
    known = methods_of(app, *configs)
    known = {**known, **{name: _of_class(name) for name in names if ":" in name}}
    for name in names:
        if name not in known:
            folders = sorted(file.parent.name for file in app.path.glob(f"conf/*/{name}.toml"))
            where = f": --config {' '.join([*configs, folders[0]])} has it" if folders else ""
            raise ConfigError(
                f"there is no method {name!r}{where}; {app.name} with the settings "
                f"{' '.join(configs)} has {', '.join(known)}"
            )
    wanted = {*FLOORS, *names} if names else {n for n, one in known.items() if one.by_default}
    return tuple(method for name, method in known.items() if name in wanted)


def _of_class(name: str) -> CatalogueEntry:
    """A method that is not of the package: "module:Class"."""
    strategy = strategy_named(name)
    title = strategy.__name__
    return CatalogueEntry(name=title, title=title, kind=strategy.kind, import_path=name, paper=name)


def _stated(config: type[PrivateSumConfig]) -> dict[str, ConfigValue]:
    """The default of every key of a run configuration that has one."""
    keys, defaults = config.keys(), config.defaults()
    return {key: value for key, value in defaults.items() if key in keys and value is not None}

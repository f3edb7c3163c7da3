"""Everything a run meets before it asks anybody, and what it will spend and send.

By the code that a run meets it by: settings, data, noise, and the method's own setting up, which
loads what the run loads, in a folder that is thrown away. Nothing is spent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from flower_privsyn.data import Chunking
from flower_privsyn.dry_run.people import People, check_public_text, read_people
from flower_privsyn.dry_run.report import Report
from flower_privsyn.embedding import load_tokenizer
from flower_privsyn.errors import RunDirectoryError
from flower_privsyn.files import os_errors_as, try_file
from flower_privsyn.host.app import App, ConfigValue, strategy_of_app
from flower_privsyn.host.launch import place_of
from flower_privsyn.messages.wire import Traffic
from flower_privsyn.privacy import Plan, skipping
from flower_privsyn.privacy.calibrated import calibrated
from flower_privsyn.progress import Progress
from flower_privsyn.report.numbers import bytes_text
from flower_privsyn.run import RunDirectory
from flower_privsyn.run.federation import Sources, set_up, source_of
from flower_privsyn.run.method import Method
from flower_privsyn.run.plan import NoiseAgainstUsers, plan_of
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import ask_of, broadcast_of, shown, traffic_of
from flower_privsyn.run.trackers import require_tracker

#: Share of the users with text from which on the others are not worth a warning.
_MOST_WRITE: Final = 0.9


def check_app(
    app: App,
    values: Mapping[str, ConfigValue],
    *,
    run_dir: str | None = None,
    evaluate: str | None = None,
    deployment: bool = False,
    starting: bool = False,
) -> Report:
    """Check a run of an app on this machine: what `privsyn check` says, and `privsyn run` first.

    Args:
        app: the app.
        values: settings from `flower_privsyn.host.app.resolve_config`.
        run_dir: the run directory, where the setting `run-dir` does not name it.
        evaluate: the run's own data, where the finished run is to be measured on those held out.
        deployment: the users are on the nodes of a deployment, and this is its server's machine:
            no text is read, and they are taken to be as many as `num-users` says.
        starting: the run begins next, and sets its method up itself.

    Returns:
        What was found, in words and figures.
    """
    report = Report()
    with report.refusals("run directory"):  # it, and all that is written beside it, has a place
        path = place_of(app, values, run_dir)
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        with os_errors_as(RunDirectoryError, f"{there}, where the run is to be written"):
            try_file(there)
    if (found := _settings_of(app, values, report)) is not None:
        settings, method = found
        people = None
        if deployment and not settings.num_users:
            said = "num-users = 0: say for how many users the noise is to be looked at"
            report.say("data", said, level="stops")
        elif deployment:
            said = f"on the nodes, and not read here: {settings.num_users:,} users (num-users)"
            if share := settings.held_out_fraction:
                said += f", besides those that the nodes hold out (held-out-fraction = {share:g})"
            report.say("data", said)
        else:
            people = _read(app, values, settings, report)
        plan = check_plan(method, settings, people, report=report, data=str(values.get("data", "")))
        if evaluate is not None:
            from flower_privsyn.evaluation.run import held_out_samples, own_users, split_users

            with report.refusals("evaluation"):
                config = {**settings.to_dict(), **dict(settings.node_settings)}
                _, others = split_users(config, own_users(config, evaluate))
                tokenizer, _ = load_tokenizer(settings.embedding_model)
                held_out_samples(config, others, tokenizer=tokenizer)
        # Loading models takes a while: what stops the run without them is said first.
        if plan is not None and report.ready and not starting:
            check_setup(method, settings, plan, people, report=report)
    return report


def check_plan(
    method: Method,
    settings: PrivateSumConfig,
    people: People | None = None,
    *,
    report: Report,
    data: str = "",
) -> Plan | None:
    """Check that the public text is not the users' file, and plan the noise against the users.

    Args:
        method: of the run.
        settings: of the run.
        people: who takes part; None where that is not known.
        report: takes what is found.
        data: what the users are read from.

    Returns:
        The noise of every phase; None where it cannot be settled.
    """
    with report.refusals("settings"):
        require_tracker(settings.tracker)
    public = str(settings.to_dict().get("public-text", ""))
    if people is not None and public:
        with report.refusals("public text"):
            check_public_text(public, data=data)
    users = people.users if people is not None and people.all_read else settings.num_users
    with report.refusals("privacy"):
        if said := settings.large_delta(users):
            report.say("privacy", said, level="warning")
        plan = plan_of(method, settings, population=max(1, users))
        settled = calibrated(plan, epsilon=settings.epsilon)
        costs = settled.costs()
        report.figures |= {
            **costs,
            "noise_multipliers": [phase.noise_multiplier for phase in settled.phases],
        }
        if costs["epsilon_release"] is None:
            report.say("privacy", "not private: no sufficient noise", level="warning")
        else:
            report.say(
                "privacy",
                f"epsilon {shown(costs['epsilon_release'])} towards everyone who does not know "
                f"who took part, {shown(costs['epsilon_known_cohorts'])} towards one who does; "
                f"delta {settings.delta:g}",
            )
        if users:
            _noise(settled, settings, report)
        return settled  # and None where that is refused


def check_setup(
    method: Method,
    settings: PrivateSumConfig,
    plan: Plan,
    people: People | None = None,
    *,
    report: Report,
) -> None:
    """Set a method up as a run does, try its noise, and count what its rounds will carry.

    Args:
        method: of the run; no run can be made with it afterwards.
        settings: of the run.
        plan: the noise of every phase.
        people: who takes part; None where that is not known.
        report: takes what is found.
    """
    with tempfile.TemporaryDirectory() as folder, report.refusals("setup"):
        run = RunDirectory.create(
            Path(folder) / "run", config={**settings.to_dict(), **dict(settings.node_settings)}
        )
        try:
            progress = Progress()
            sources = set_up(method, settings, run, progress=progress)
            report.say("setup", "models and public text are loaded, and can be used")
            if settings.num_users or (people is not None and people.all_read):
                with report.refusals("noise"):
                    if (found := method.check(plan, spent="nothing was spent")) is not None:
                        report.say(found.topic, found.sentence, level=found.level)
            with report.refusals("traffic"):
                if people is not None:
                    plan = plan.for_population(max(1, people.users))
                scratch = Path(folder) / "scratch"
                scratch.mkdir()
                _say_traffic(
                    traffic_of_rounds(method, settings, plan, sources, scratch=scratch), report
                )
        finally:
            run.unlock()


def traffic_of_rounds(
    method: Method,
    settings: PrivateSumConfig,
    plan: Plan,
    sources: Sources,
    *,
    scratch: Path,
) -> list[Traffic]:
    """What every round will carry to a node and back, counted as a run counts it.

    Args:
        method: that was set up.
        settings: of the run.
        plan: settled, for the population there is.
        sources: what makes the records.
        scratch: an empty folder.
    """
    found: list[Traffic] = []
    counted: dict[tuple[object, ...], Traffic] = {}
    states = method.example_states(scratch)
    for number in range(1, settings.num_rounds + 1):
        state = states[max(first for first in states if first <= number)]
        question, phase = method.ask(state, number), plan.at(number)
        shapes = tuple((name, a.dtype, a.shape) for name, a in question.broadcast.items())
        # Rounds differ in nothing but their number, which takes more room the longer it is.
        digits = len(str(number)), -(-number.bit_length() // 7)
        alike = (question.query.name, shapes, phase.name, *digits)
        if alike not in counted:
            ask = ask_of(
                question,
                settings,
                phase,
                number=number,
                data=source_of(sources, question.query)[0],
                secure=settings.secure_terms(settings.num_nodes),
            )
            counted[alike] = traffic_of(
                ask, broadcast_of(question, settings), nodes=settings.num_nodes
            )
        found.append(counted[alike])
    return found


# ---- one after the other -----------------------------------------------------------------------


def _settings_of(
    app: App, values: Mapping[str, ConfigValue], report: Report
) -> tuple[PrivateSumConfig, Method] | None:
    """The settings and the method of the strategy, where the app says which it is."""
    with report.refusals("settings"):
        found = strategy_of_app(app, values)
        if found is None:
            report.say(
                "settings",
                f"{app.name} chooses its strategy in its code (it has no key strategy): what it "
                "will ask is not known here",
                level="warning",
            )
            report.unknown = True
            return None
        settings, strategy = found
        rounds = f"{settings.num_rounds} round{'s' if settings.num_rounds > 1 else ''}"
        report.say("settings", f"{strategy.__name__}, {rounds}, on {settings.num_nodes} nodes")
        return settings, strategy(settings).method  # and None where they are refused


def _read(
    app: App, values: Mapping[str, ConfigValue], settings: PrivateSumConfig, report: Report
) -> People | None:
    with report.refusals("data"):
        with skipping.counting() as tally:
            people = read_people(
                app,
                values,
                chunking=Chunking.of(settings.to_dict()),
                nodes=settings.num_nodes,
            )
        if tally:
            report.say("data", str(tally), level="warning")
        if people is None:
            report.say(
                "data",
                f"{app.name}'s ClientApp has no handlers of this package (add_handlers): its nodes "
                "answer no question of a strategy, and nothing is known of its users",
                level="warning",
            )
            report.unknown = True
            return None
        report.not_private = True
        report.figures |= {"users": people.users, "documents": people.documents}
        of = "" if people.all_read else " of the nodes that were read"
        held = f"; {people.held_out:,} more are held out" if people.held_out else ""
        said = f"{people.users:,} users{of} take part with {people.documents:,} texts{held}"
        report.say("data", said)
        if people.writing < people.users:
            report.say(
                "data",
                f"{people.users - people.writing:,} of them have no text and are asked all the "
                f"same: no more than {people.writing:,} can agree on something against the noise",
                level="fine" if people.writing > _MOST_WRITE * people.users else "warning",
            )
        if people.all_read and people.users < settings.num_users:
            planned = f"{settings.num_users:,} were planned (num-users)"
            said = f"{people.users:,} users take part, {planned}"
            report.say("data", said, level="stops")
        return people  # and None where that is refused


def _noise(plan: Plan, settings: PrivateSumConfig, report: Report) -> None:
    for phase in plan.phases:
        settings.required_users(phase.sampling)  # refuses more than there will be
        against = NoiseAgainstUsers.of(phase, settings)
        if not settings.accept_noise:
            with report.refusals("noise"):
                against.refuse()
        if against.noise_multiplier == 0 or not report.ready:
            continue
        report.figures |= {"noise_share": 1.0 / against.signal, "users_to_be_seen": against.seen}
        few = against.seen > against.users / 3
        report.say("noise", str(against), level="warning" if few else "fine")


def _say_traffic(rounds: Sequence[Traffic], report: Report) -> None:
    down, up = sum(one.bytes_down for one in rounds), sum(one.bytes_up for one in rounds)
    report.figures |= {
        "bytes_down": down,
        "bytes_up": up,
        "bytes_down_by_round": [one.bytes_down for one in rounds],
        "bytes_up_by_round": [one.bytes_up for one in rounds],
    }
    report.say(
        "traffic",
        f"a node that is asked in every round receives at most {bytes_text(down)} and sends "
        f"{bytes_text(up)} in {len(rounds)} round{'s' if len(rounds) > 1 else ''}",
    )

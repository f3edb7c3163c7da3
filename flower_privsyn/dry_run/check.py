"""Everything a run meets before it asks anybody, and what it will spend, send and compute.

Read by the code that a run reads it by: settings, data, models, noise and traffic. Nothing is
spent, and nothing is written.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Final

from flower_privsyn.data import Chunking
from flower_privsyn.data.public_corpus import PublicCorpus
from flower_privsyn.dry_run.libraries import require
from flower_privsyn.dry_run.model_index import ModelIndex, NotHereError
from flower_privsyn.dry_run.people import People, read_people
from flower_privsyn.dry_run.public_text import check_public_text, check_rows
from flower_privsyn.dry_run.report import Level, Report
from flower_privsyn.errors import MissingExtraError, ModelError, RunDirectoryError
from flower_privsyn.files import located
from flower_privsyn.generation import load_instruction, load_prompt
from flower_privsyn.generation.api_key import is_address
from flower_privsyn.generation.generators import check_server, is_gguf
from flower_privsyn.generation.gguf_backend import file_of
from flower_privsyn.generation.variation import refuse_longer
from flower_privsyn.host.app import (
    App,
    ConfigValue,
    check_data,
    num_nodes,
    refuse_what_flower_refuses,
    strategies_of,
)
from flower_privsyn.host.launch import place_of, require_simulation
from flower_privsyn.models import packaged, stamped
from flower_privsyn.models.gguf import read_gguf
from flower_privsyn.models.pretrained import refuse_other_kind
from flower_privsyn.privacy import skipping
from flower_privsyn.privacy.calibrated import CalibratedPlan, calibrated
from flower_privsyn.report.numbers import bytes_text
from flower_privsyn.run.method import ChosenRows, Method, NeededModel, Needs
from flower_privsyn.run.plan import NoiseAgainstUsers, plan_of
from flower_privsyn.run.settings import PrivateSumConfig
from flower_privsyn.run.strategy import planned_traffic, shown
from flower_privsyn.run.trackers import require_tracker
from flower_privsyn.strategies.by_name import STRATEGIES, own_keys

#: How many standard deviations of the noise stand out.
_SEEN: Final = 3.0

#: Share of the users with text from which on the others are not worth a warning.
_MOST_WRITE: Final = 0.9

#: Longest wait for each answer of a server, in seconds.
_SERVER_SECONDS: Final = 10.0


def check_app(
    app: App,
    values: Mapping[str, ConfigValue],
    *,
    run_dir: str | None = None,
    evaluate: str | None = None,
    deployment: bool = False,
    try_noise: bool = False,
    ray: bool = False,
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
        try_noise: also load the model that is trained on the nodes, and try on public text what
            the noise alone would make of it.
        ray: Flower's own simulation is to run it.
        starting: the run begins next, and what it will send and compute stops nothing.

    Returns:
        What was found, in words and figures.
    """
    report, index = Report(), ModelIndex()
    with report.refusals("app"):
        refuse_what_flower_refuses(app)
    if not deployment:
        with report.refusals("machine"):
            require_simulation(ray=ray)
            num_nodes(values)
    _place(app, values, run_dir, report)
    every = _settings_of(app, values, report)
    if report.unknown and not every and not deployment:
        with report.refusals("data"):
            check_data(app, values)
    for settings, method in every:
        people = None
        if deployment:
            _planned(settings, report)
        else:
            people = _read(app, values, settings, report)
        plan = check_method(
            method, settings, people, report=report, index=index, data=str(values.get("data", ""))
        )
        if evaluate is not None:
            _evaluation(evaluate, settings, report, index)
        if plan is not None and try_noise:
            counted = settings.num_users or (people is not None and people.all_read)
            _try_noise(method, plan, report, index, counted=bool(counted))
        if plan is not None and not starting:
            _traffic(method, settings, plan, people, report, index)
    return report


def check_method(
    method: Method,
    settings: PrivateSumConfig,
    people: People | None = None,
    *,
    report: Report,
    index: ModelIndex,
    data: str = "",
) -> CalibratedPlan | None:
    """Check what a method needs at the server, its public text against the users, and its noise.

    Args:
        method: of the run.
        settings: of the run.
        people: who takes part; None where that is not known.
        report: takes what is found.
        index: where models are; one for several methods looks at each model once.
        data: what the users are read from.

    Returns:
        The noise of every phase; None where it cannot be settled.
    """
    needs = method.needs()
    with report.refusals("libraries"):
        require_tracker(settings.tracker)
    check_needs(
        needs,
        report=report,
        index=index,
        api_key_env=str(getattr(settings, "generator_api_key_env", "")),
    )
    if people is not None and needs.public_text:
        with report.refusals("public text"):
            if said := check_public_text(needs.public_text, people.written, data=data):
                report.say("public text", said, level="warning")
    return _plan(method, settings, people, report)


def check_needs(needs: Needs, *, report: Report, index: ModelIndex, api_key_env: str) -> None:
    """Check that libraries, models, generation servers and files are there.

    Args:
        needs: what a run uses.
        report: takes what is found.
        index: where models are.
        api_key_env: the environment variable with a generation server's key.
    """
    with report.refusals("libraries"):
        require(needs.libraries)
        if needs.libraries:
            report.say("libraries", f"{', '.join(needs.libraries)} are installed")
    for model in needs.models:
        with report.refusals("models"):
            stamped.refuse(model.setting, model.name)
            _model(model, report, index, api_key_env=api_key_env)
    with report.refusals("settings"):
        if needs.prompt:
            load_prompt(located(needs.prompt))
        if needs.variation_prompt:
            load_instruction(located(needs.variation_prompt), purpose="variation")
        if needs.initial_prompt:
            load_instruction(located(needs.initial_prompt), purpose="beginning")
    if needs.public_text:
        with report.refusals("public text"):
            corpus = PublicCorpus.find(needs.public_text, setting="public-text")
            if corpus.path is not None:
                next(corpus.documents(), None)  # says what the file holds in place of text
            if needs.rows is not None:
                _rows(needs.public_text, needs.rows, report, index)
    for read in needs.reads:
        with report.refusals("public text"):
            embeds = next(model for model in needs.models if model.kind == "embedding")
            try:
                tokenizer = index.tokenizer(embeds.name)
            except (ModelError, MissingExtraError):
                return  # said where models are
            read(tokenizer)


# ---- one after the other -----------------------------------------------------------------------


def _place(
    app: App, values: Mapping[str, ConfigValue], run_dir: str | None, report: Report
) -> None:
    """Whether the run directory, and all that is written beside it, has a place."""
    with report.refusals("run directory"):
        path = place_of(app, values, run_dir)
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        if not there.is_dir():
            raise RunDirectoryError(
                f"{there}, below which the run is to be written, is a file, not a folder"
            )
        if not os.access(there, os.W_OK):
            raise RunDirectoryError(f"{there}, where the run is to be written, cannot be written")


def _settings_of(
    app: App, values: Mapping[str, ConfigValue], report: Report
) -> list[tuple[PrivateSumConfig, Method]]:
    """The settings and the method of every strategy that is known from outside."""
    every = []
    with report.refusals("settings"):
        found = strategies_of(app, values)
        if len(found) != 1:
            several = "several strategies" if found else "its strategy's settings"
            report.say(
                "settings",
                f"{app.name} chooses {several} in its code: what it will ask is not known here",
                level="warning",
            )
            report.unknown = True
        for settings, strategy in found:
            rounds = f"{settings.num_rounds} round{'s' if settings.num_rounds > 1 else ''}"
            report.say("settings", f"{strategy.__name__}, {rounds}, on {settings.num_nodes} nodes")
            every.append((settings, strategy(settings).method))
        if values.get("strategy") in STRATEGIES and (own := sorted(own_keys(values) - {"run-dir"})):
            said = f"other_keys in {app.name}'s ServerApp must name its own keys: {', '.join(own)}"
            report.say("settings", said)
    return every


def _read(
    app: App, values: Mapping[str, ConfigValue], settings: PrivateSumConfig, report: Report
) -> People | None:
    with report.refusals("data"):
        with skipping.counting() as tally:
            people = read_people(
                app,
                values,
                cut=_cut(settings),
                nodes=settings.num_nodes,
                most_nodes=settings.max_nodes_per_user,
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
        of = "" if people.all_read else f" of the first {people.nodes_read} of {people.nodes} nodes"
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
        if people.users and settings.delta >= 1 / people.users:
            _large_delta(settings.delta, people.users, report)
        return people  # and None where that is refused


def _evaluation(file: str, settings: PrivateSumConfig, report: Report, index: ModelIndex) -> None:
    """Read whom the run holds out as `privsyn evaluate` will."""
    from flower_privsyn.evaluation.run import held_out_samples, own_users, split_users

    with report.refusals("evaluation"):
        config = {**settings.to_dict(), **dict(settings.node_settings)}
        _, others = split_users(config, own_users(config, file))
        try:
            tokenizer = index.tokenizer(settings.embedding_model)
        except NotHereError:
            return  # the run downloads it
        held_out_samples(config, others, tokenizer=tokenizer)


def _planned(settings: PrivateSumConfig, report: Report) -> None:
    """What is said of users whom nobody reads here."""
    if not settings.num_users:
        said = "num-users = 0: say for how many users the noise is to be looked at"
        report.say("data", said, level="stops")
        return
    said = f"on the nodes, and not read here: {settings.num_users:,} users (num-users)"
    share = settings.held_out_fraction
    if share:
        said += f", besides those that the nodes hold out (held-out-fraction = {share:g})"
    report.say("data", said)
    if settings.delta >= 1 / settings.num_users:
        _large_delta(settings.delta, settings.num_users, report)


def _large_delta(delta: float, users: int, report: Report) -> None:
    report.say(
        "privacy",
        f"delta = {delta:g} is not below 1 / {users:,} users: even publishing one random user's "
        "text would count as private",
        level="warning",
    )


def _cut(settings: PrivateSumConfig) -> Chunking:
    return Chunking.of(settings.to_dict())


def _model(model: NeededModel, report: Report, index: ModelIndex, *, api_key_env: str) -> None:
    if is_address(model.name):
        require(("openai",))
        said = check_server(model.name, api_key_env=api_key_env, seconds=_SERVER_SECONDS)
        level: Level = "warning" if said else "fine"
        answers = said or f"{model.name.partition('#')[0]} answers"
        report.say("models", f"{model.setting}: {answers}", level=level)
        return
    if is_gguf(model.name):
        require(("openai", "xllamacpp", "gguf"))
        header = read_gguf(file_of(model.name))
        size = f"{header.architecture}, {header.parameters:,} parameters"
        report.say("models", f"{model.setting} = {model.name}: {size}")
        return
    if model.name in packaged.PACKAGED:
        _packaged(model, report)
        return
    try:
        folder = index.folder(model.name, embeds=model.kind == "embedding")
        if model.kind != "embedding":
            refuse_other_kind(model.name, folder, "masked" if model.kind == "masked" else "causal")
    except NotHereError as error:
        report.say("models", f"{model.setting}: {error}", level="warning")
    except ModelError as error:
        raise ModelError(f"{model.setting}: {error}") from error
    else:
        if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
            raise ModelError(f"{model.setting}: {folder} holds no weights")
        report.say("models", f"{model.setting} = {model.name}: {folder}")
        if model.max_tokens:
            _length(model, index)


def _length(model: NeededModel, index: ModelIndex) -> None:
    try:
        most = index.most_tokens(model.name)
    except (ModelError, MissingExtraError):
        return  # a tokenizer that is made when the model is loaded
    if math.isfinite(most):
        refuse_longer(model.max_tokens, most=int(most), model=model.name)


def _rows(public_text: str, rows: ChosenRows, report: Report, index: ModelIndex) -> None:
    try:
        folder = index.tokenizer_folder(rows.model)
        said = check_rows(public_text, rows, folder=folder)
    except (ModelError, MissingExtraError):
        return  # said where models are
    if said:
        report.say("public text", said, level="warning")


def _packaged(model: NeededModel, report: Report) -> None:
    writer = packaged.PACKAGED[model.name]
    packaged.check(writer)
    where: object = packaged.made_folder(writer)
    if where is None:
        where = f"its package is installed; the first run unpacks it in {packaged.place()}"
    report.say("models", f"{model.setting} = {model.name}: {where} ({writer.licence})")


def _plan(
    method: Method, settings: PrivateSumConfig, people: People | None, report: Report
) -> CalibratedPlan | None:
    """The noise of every phase by the planner of a run, both epsilons, and what the noise hides."""
    known = people is not None and people.all_read and people.users > 0
    population = people.users if known and people is not None else max(1, settings.num_users)
    with report.refusals("privacy"):
        plan = calibrated(
            plan_of(method, settings, population=population), epsilon=settings.epsilon
        )
        costs = plan.plan.costs()
        report.figures |= {
            **costs,
            "noise_multipliers": [phase.noise_multiplier for phase in plan.plan.phases],
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
        if known or settings.num_users:
            _noise(plan, settings, report)
        return plan  # and None where that is refused


def _noise(plan: CalibratedPlan, settings: PrivateSumConfig, report: Report) -> None:
    for phase in plan.plan.phases:
        settings.required_users(phase.sampling)  # refuses more than there will be
        against = NoiseAgainstUsers.of(phase, settings)
        users, multiplier = against.users, against.noise_multiplier
        if not settings.accept_noise:
            with report.refusals("noise"):
                against.refuse(phase.asks)
        if multiplier == 0 or not report.ready:
            continue
        seen = math.ceil(_SEEN * multiplier)
        share = 100.0 / against.signal
        report.figures |= {"noise_share": 1.0 / against.signal, "users_to_be_seen": seen}
        report.say(
            "noise",
            f"its standard deviation is {share:.2g} % of what the {users:,.0f} users of a round "
            f"can add up to; about {seen:,} of them must agree on something for it to be seen",
            level="fine" if seen <= users / 3 else "warning",
        )


def _try_noise(
    method: Method, plan: CalibratedPlan, report: Report, index: ModelIndex, *, counted: bool
) -> None:
    """What the noise makes of the model that is trained, where it is here and users are known."""
    if not counted:
        said = "not tried on the model: how many users take part is not known (num-users)"
        report.say("noise", said, level="warning")
        return
    if not report.ready:
        report.say("noise", "not tried on the model: what stops the run comes first")
        return
    try:
        for model in method.needs().models:
            if model.kind == "causal":
                index.folder(model.name)
    except NotHereError as error:
        report.say("noise", f"not tried on the model: {error}", level="warning")
        return
    with report.refusals("noise"):
        found = method.check(plan.plan, spent="nothing was spent")
        if found is None:
            report.say("noise", "there is no model under noise that could be tried")
        else:
            report.say("noise", found.sentence, level="warning" if found.warning else "fine")


def _traffic(
    method: Method,
    settings: PrivateSumConfig,
    plan: CalibratedPlan,
    people: People | None,
    report: Report,
    index: ModelIndex,
) -> None:
    try:
        outline = method.outline(index)
    except (ModelError, MissingExtraError):
        outline = None  # which model is missing was said
    if outline is None:
        report.say("traffic", "not known: a model it depends on is not here", level="warning")
        return
    if people is not None:
        plan = plan.for_population(max(1, people.users))
    rounds = planned_traffic(outline, settings, plan)
    down, up = sum(one.bytes_down for one in rounds), sum(one.bytes_up for one in rounds)
    report.figures |= {
        "bytes_down": down,
        "bytes_up": up,
        "bytes_down_by_round": [one.bytes_down for one in rounds],
        "bytes_up_by_round": [one.bytes_up for one in rounds],
    }
    most = "at most " if outline.at_most else ""
    report.say(
        "traffic",
        f"a node that is asked in every round receives {most}{bytes_text(down)} and sends "
        f"{most}{bytes_text(up)} in {len(rounds)} round{'s' if len(rounds) > 1 else ''}",
    )

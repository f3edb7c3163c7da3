"""What the page of one run is filled with: its summary, and the figures and texts of its rounds.

They are released values and what was made of them and of public text, so the page may lie in the
run directory and be shown to whoever may read that.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flower_privsyn.evaluation.result import STAMP
from flower_privsyn.report.figures import spending
from flower_privsyn.report.numbers import bytes_text, counted, epsilon_text, number, whole
from flower_privsyn.report.summary import RunSummary
from flower_privsyn.run.directory import TRAINED_MODEL

#: Texts that are shown of a round.
_ROUND_SAMPLES = 3

_OUTCOMES = {
    "released": "released",
    "discarded": "discarded: too few users, nothing released",
    "lost": "lost: charged, nothing released",
    "interrupted": "interrupted: charged, and its release lost",
    None: "not finished",
}

Facts = list[tuple[str, str | None]]
"""Names and their values; left out where there is none."""

Rows = list[tuple[str, ...]]


def filled(summary: RunSummary, quality: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """What `run.html.j2` shows, by the names that it has for it.

    Args:
        summary: of a run of any strategy, finished or not.
        quality: names and figures of its evaluation, which are stamped; for a page that does not
            lie in the run directory.

    Raises:
        RunDirectoryError: a file of the run is damaged.
    """
    made = [counted(summary.synthetic_texts, "text")] if summary.synthetic_texts else []
    return {
        "run": summary,
        "heading": f"Run {summary.name}",
        "stamp": STAMP if quality else None,
        "subtitle": _subtitle(summary),
        "error": _error(summary),
        "go_on": (summary.go_on or "").replace(summary.path, summary.name),
        "made": ", ".join([*made, *([TRAINED_MODEL] if summary.model else [])]) or "nothing yet",
        "epsilons": [*map(epsilon_text, (summary.epsilon_release, summary.epsilon_known_cohorts))],
        "quality": quality,
        "texts": _samples(summary),
        "mechanism": _mechanism(summary),
        "spending": _spending(summary),
        "costs": _costs(summary),
        "rounds": _rounds(summary),
        "said": said(summary.sketch),
        "ranking": ranked(summary.figures.get("ranking", ())),
        "settings": [(name, _setting(value)) for name, value in summary.settings.items()],
        "digest": summary.ledger_digest,
    }


def _subtitle(summary: RunSummary) -> list[str]:
    """The method, the app and the moment the run was begun."""
    # The same class is two methods of the literature.
    sft = summary.strategy == "POPri" and summary.settings.get("loss") == "sft"
    method = "PE + SFT" if sft else summary.strategy
    app = f"app {summary.app}" if summary.app else ""
    begun = str(summary.created)[:16].replace("T", " ")  # to the minute
    return [*filter(None, (method, app)), f"begun {begun}"]


def _error(summary: RunSummary) -> str | None:
    """Why the run ended, as a sentence, with the name of the run in place of its folder."""
    told = (summary.error or "").replace(summary.path, summary.name)
    if not told:
        return None
    return told[0].upper() + told[1:] + ("" if told[-1] in ".!?" else ".")


def _setting(value: Any) -> str:
    """The value of a setting as a settings file has it."""
    if value is None:
        return "not set"
    return value if isinstance(value, str) and value else json.dumps(value)


# ---------------------------------------------------------------------- privacy


def _noise_of(line: Mapping[str, Any]) -> str:
    """Who added the noise of a release, and is trusted to have done so."""
    facts = line.get("extra") or {}
    if facts.get("noise") != "nodes":
        return "added by the server, which is trusted with raw sums"
    return (
        f"added by the nodes, sums of at least {facts.get('least_nodes')} of them, "
        f"{facts.get('colluding_nodes')} of which may collude with the server (secure aggregation)"
    )


def _each(values: Iterable[str]) -> str | None:
    """The different values, in the order of the releases: phases may differ in them."""
    return ", ".join(dict.fromkeys(values)) or None


def _who(sampling: Mapping[str, Any]) -> str:
    """Who takes part in a round."""
    rate = sampling.get("rate", 1.0)
    return str(sampling.get("method")) + (f", rate {rate:.3g}" if rate < 1 else "")


def _mechanism(summary: RunSummary) -> Facts:
    """How the noise was made and who took part."""
    lines, budget = summary.charged, summary.epsilon_budget
    samplings: list[Mapping[str, Any]] = [line.get("sampling") or {} for line in lines]
    return [
        ("Budget, ε", None if budget is None else epsilon_text(budget)),
        ("δ", number(summary.delta)),
        ("Users", _each(whole(one.get("population")) for one in samplings)),
        ("Who takes part in a round", _each(map(_who, samplings))),
        (
            "Neighbouring data sets",
            _each(str(one["relation"]) for one in lines if "relation" in one),
        ),
        ("Query", _each(str(line.get("query")).replace("_", " ") for line in lines)),
        ("Mechanism", _each(str(line.get("mechanism")) for line in lines)),
        ("Noise multiplier", _each(number(line.get("noise_multiplier")) for line in lines)),
        ("Noise", _each(_noise_of(line) for line in lines)),
        ("Accountant", summary.accountant),
    ]


def _spending(summary: RunSummary) -> Any:
    """Both epsilons by round; None of fewer than two releases that have them."""
    names = {"ε release": "epsilon_release", "ε known cohorts": "epsilon_known_cohorts"}
    spent = [
        line for line in summary.charged if all(line.get(key) is not None for key in names.values())
    ]
    if len(spent) < 2:
        return None
    series = {name: [(line["round"], line[key]) for line in spent] for name, key in names.items()}
    return spending(series, budget=summary.epsilon_budget)


# ---------------------------------------------------------------------- rounds


def _costs(summary: RunSummary) -> Facts:
    """What a user receives and sends."""
    costs = summary.costs
    if costs is None:
        return []
    down, up = (bytes_text(round(costs["expected"][f"bytes_{way}"])) for way in ("down", "up"))
    return [
        (
            "Down to a user who is in all rounds",
            f"{bytes_text(costs['bytes_down'])} ({costs['floats_down']:,} numbers)",
        ),
        (
            "Up from such a user",
            f"{bytes_text(costs['bytes_up'])} ({costs['floats_up']:,} numbers)",
        ),
        ("Down to and up from a user, on average", f"{down} and {up}"),
    ]


def _rounds(summary: RunSummary) -> Rows:
    """What became of every round, who was in it and what it cost."""
    return [
        (
            str(line["round"]),
            _OUTCOMES.get(line["outcome"], str(line["outcome"])),
            whole(line.get("num_users")),
            whole(line.get("missing")),
            number(line.get("epsilon_release")),
            number(line.get("epsilon_known_cohorts")),
            bytes_text(line.get("bytes_down")),
            bytes_text(line.get("bytes_up")),
        )
        for line in summary.rounds
    ]


# ---------------------------------------------------------------------- texts


def _samples(summary: RunSummary) -> list[dict[str, Any]]:
    """Texts of the result, and the best of the last round."""
    cards = []
    if summary.samples:
        note = f"{whole(summary.synthetic_texts)} {summary.texts_are}; the first"
        cards.append({"title": "Result", "note": note, "texts": summary.samples})
    found = {place: rows for place, rows in summary.round_texts().items() if rows}
    if found:
        rows = found[max(found)]
        public = {row.get("source") for row in rows} == {"public"}
        for score in ("votes", "score"):
            if rows[0].get(score) is not None:
                rows = sorted(rows, key=lambda row: -row[score])
        cards.append(
            {
                "title": f"Round {max(found)}" + (", public text" if public else ""),
                "note": f"{whole(len(rows))} texts",
                "texts": list(dict.fromkeys(str(row["text"]) for row in rows))[:_ROUND_SAMPLES],
            }
        )
    return cards


# ---------------------------------------------------------------------- what a release says


def said(sketch: Mapping[str, Any] | None) -> list[tuple[str, Rows]]:
    """Tokens and bigrams that a joint sketch is surest of: a caption and rows for each end."""
    return [
        (
            f"{kind.capitalize()}s that users write {end} often than public text",
            [
                (
                    json.dumps(item["text"], ensure_ascii=False),
                    *(f"{item[key]:.3g}" for key in ("ratio", "low", "high")),
                )
                for item in items
            ],
        )
        for kind, ends in (sketch or {}).items()
        for end, items in ends.items()
        if items
    ]


def ranked(ranking: Iterable[Mapping[str, Any]]) -> Rows:
    """Sets of text, their distance to released moments, and how sure the order is."""
    figures = ("fred", "error", "mean_part", "nearest")
    return [
        (str(one["name"]), whole(one["texts"]), *(number(one[key]) for key in figures))
        for one in ranking
    ]

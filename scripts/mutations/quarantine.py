"""Mistakes that let one user decide about the others on a node."""

from __future__ import annotations

from mutation import Mutation

ANSWERS = "tests/client_apps/test_answer.py"
SAME_SUM = f"{ANSWERS}::test_the_others_sum_is_the_same_to_the_bit"
LIMITS = "tests/data/test_limits.py"
LOAD = "tests/data/test_load.py"
NODES = "tests/privacy/test_several_nodes.py"
NODES_RUN = "tests/private_path/test_several_nodes.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a text that the model fails on takes the node along",
        file="flower_privsyn/embedding/salvage.py",
        function="embed_each",
        before="    rows = quarantine.salvage(list(texts), embed, probe=quarantine.PROBE)\n",
        after="    rows = embed(list(texts))\n",
        tests=(SAME_SUM,),
    ),
    Mutation(
        name="what fails takes its half of the users along",
        file="flower_privsyn/privacy/quarantine.py",
        function="salvage",
        before="            if len(part) == 1:\n                results.append(None)\n",
        after="            if len(part) <= 2:\n"
        "                results.extend([None] * len(part))\n",
        tests=("tests/privacy/test_quarantine.py", SAME_SUM),
    ),
    Mutation(
        name="a fault of the node passes for everybody's silence",
        file="flower_privsyn/privacy/quarantine.py",
        function="salvage",
        before="        _counted([probe], compute)\n",
        after="        pass\n",
        tests=("tests/privacy/test_quarantine.py", f"{ANSWERS}::TestAnswerOf"),
    ),
    Mutation(
        name="only ordinary exceptions are a record's fault",
        file="flower_privsyn/privacy/quarantine.py",
        function="salvage",
        before="    except BaseException:\n        _counted([probe], compute)\n",
        after="    except Exception:\n        _counted([probe], compute)\n",
        tests=("tests/privacy/test_quarantine.py", SAME_SUM, f"{LIMITS}"),
    ),
    Mutation(
        name="a user whose answer fails takes the sum along",
        file="flower_privsyn/client_apps/answer.py",
        function="answer_of",
        before="    kept = ~failing[cohort.owners]\n",
        after="    kept = ~failing[cohort.owners] & ~failing.any()\n",
        tests=(f"{ANSWERS}::TestAnswerOf",),
    ),
    Mutation(
        name="a sum that is not finite is sent",
        file="flower_privsyn/client_apps/answer.py",
        function="_finite",
        before="    if not np.isfinite(total).all():\n",
        after="    if False:\n",
        tests=(f"{ANSWERS}::TestAnswerOf",),
    ),
    Mutation(
        name="a user whose training fails takes the node along",
        file="flower_privsyn/client_apps/training.py",
        function="_Tokens.cohorts",
        before="            if update is None or not np.isfinite(update).all():\n",
        after="            if update is None:\n"
        "                raise RuntimeError\n"
        "            if not np.isfinite(update).all():\n",
        tests=("tests/client_apps/test_training.py::TestFailures",),
    ),
    Mutation(
        name="half a surrogate pair is a document",
        file="flower_privsyn/data/limits.py",
        function="is_usable",
        before="    except UnicodeEncodeError:\n        return False\n    return True\n",
        after="    except UnicodeEncodeError:\n        return True\n    return True\n",
        tests=(LIMITS,),
    ),
    Mutation(
        name="one user's documents use up another one's cap",
        file="flower_privsyn/data/limits.py",
        function="within_limits",
        before="        total = 0\n        for place in",
        after="        for place in",
        tests=(LIMITS,),
    ),
    Mutation(
        name="no cap on one user's documents",
        file="flower_privsyn/data/limits.py",
        function="within_limits",
        before="(documents > MAX_DOCUMENTS) | (characters > MAX_CHARACTERS)",
        after="characters > MAX_CHARACTERS",
        tests=(LIMITS,),
    ),
    Mutation(
        name="a record that is no text has the whole file refused",
        file="flower_privsyn/data/load.py",
        function="_grouped",
        before="    if unusable.any():\n",
        after="    if unusable.any():\n        raise DataError('no text')\n",
        tests=(LOAD,),
    ),
    Mutation(
        name="a day beyond the calendar takes everybody along",
        file="flower_privsyn/data/columns.py",
        function="_days",
        before="    known &= (days >=",
        after="    known | (days >=",
        tests=(f"{LOAD}::test_a_day_beyond_the_calendar_is_unknown",),
    ),
    Mutation(
        name="a deeply nested line is nobody's",
        file="flower_privsyn/data/json_lines.py",
        function="_parse_line",
        before="    except RecursionError:\n        return flat_json.outermost(line)\n",
        after="    except RecursionError:\n        return None\n",
        tests=(f"{LOAD}::test_what_a_user_nests_is_that_users",),
    ),
    Mutation(
        name="devices share their vectors",
        file="flower_privsyn/embedding/machine.py",
        function="machine_digest",
        before="json.dumps([*_installed(), values, device]",
        after="json.dumps([*_installed(), values]",
        tests=("tests/embedding/test_company.py::test_vectors_of_another_device_are_not_found",),
    ),
    Mutation(
        name="a line of nobody's drops a user from the roster",
        file="flower_privsyn/data/json_lines.py",
        function="_parse_by_line",
        before='                raise bad("not a JSON object, so nobody knows whose it is")\n',
        after="                continue\n",
        tests=(LOAD,),
    ),
    Mutation(
        name="the node's counts stand in the log of a simulation",
        file="flower_privsyn/client_apps/answer.py",
        function="report",
        before="    if not in_simulation():\n",
        after="    if True:\n",
        tests=(f"{ANSWERS}::test_the_nodes_own_log_counts_and_quotes_nothing",),
    ),
    Mutation(
        name="a user on two nodes has the noise of one",
        file="flower_privsyn/private_path/engine.py",
        function="PrivateSumStrategy._mechanism_of",
        before="l2_sensitivity=self.config.max_nodes_per_user * query.clip_norm",
        after="l2_sensitivity=query.clip_norm",
        tests=(f"{NODES_RUN}::test_the_noise_is_k_times_that_of_one_node",),
    ),
    Mutation(
        name="coins on several nodes accounted as one coin",
        file="flower_privsyn/privacy/accounting.py",
        function="_cost",
        before="        if release.max_nodes_per_user > 1:\n",
        after="        if False:\n",
        tests=(f"{NODES}::test_sensitivity_k_at_rate_q_is_no_bound",),
    ),
    Mutation(
        name="one coin too few",
        file="flower_privsyn/privacy/mixture.py",
        function="mixture_loss_distribution",
        before="heads = binom.pmf(np.arange(coins + 1), coins, rate)",
        after="heads = binom.pmf(np.arange(coins + 1), coins, rate / coins)",
        tests=(f"{NODES}::test_delta_is_that_of_the_integral",),
    ),
    Mutation(
        name="the budget is calibrated for one node",
        file="flower_privsyn/private_path/settling.py",
        function="plan_of",
        before="        max_nodes_per_user=settings.max_nodes_per_user,\n",
        after="",
        tests=(f"{NODES_RUN}::test_coins_are_accounted_as_a_mixture",),
    ),
    Mutation(
        name="the ledger forgets on how many nodes a user may be",
        file="flower_privsyn/privacy/ledger_lines.py",
        function="PlannedRelease.from_line",
        before='            "max_nodes_per_user", line.get("max_nodes_per_user", 1), ge=1\n',
        after='            "max_nodes_per_user", 1, ge=1\n',
        tests=(f"{NODES}::test_the_ledger_states_and_charges_it",),
    ),
    Mutation(
        name="a simulation's deal is not looked at",
        file="flower_privsyn/client_apps/deal.py",
        function="check_deal",
        before="    if users:\n",
        after="    if False:\n",
        tests=("tests/client_apps/test_deal.py",),
    ),
)

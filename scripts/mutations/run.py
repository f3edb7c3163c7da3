"""Show that the tests catch the mistakes that make a private system not private.

    python scripts/mutations/run.py [NAME ...]

copies the repository, plants one mistake at a time in the copy, and runs the tests named beside it.
Every mistake must make at least one of them fail; the script ends with status 1 otherwise, and also
when a test fails without any mistake.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from mutation import Mutation

ROOT = Path(__file__).resolve().parents[2]
STRATEGY = "flower_privsyn/private_path/engine.py"
PRIVACY = "flower_privsyn/privacy"


SUM_TESTS = "tests/private_path/test_engine.py"
LEDGER_TESTS = "tests/privacy/test_ledger.py"
ACCOUNTING = "tests/privacy/test_accounting.py"
CORRELATED = "tests/privacy/test_correlated_noise.py"
FTRL_TESTS = "tests/strategies/test_dp_ftrl.py"
SIMILARITY = "flower_privsyn/queries/similarity.py"
SIMILARITY_TESTS = "tests/queries/test_similarity.py"
KERNEL_MEAN = "flower_privsyn/queries/kernel_mean.py"
KERNEL_MEAN_TESTS = "tests/queries/test_kernel_mean.py"
ROUNDS = "flower_privsyn/strategies/parts/preference_rounds.py"
ROUNDS_TESTS = "tests/strategies/parts/test_preference_rounds.py"
POPRI_TESTS = "tests/strategies/test_popri.py"
SKETCH_TESTS = "tests/strategies/test_kernel_sketch.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="noise divided by the number of users",
        file=STRATEGY,
        before="            values = mechanism.release(from_grid(total), random=random)\n",
        after="            values = mechanism.release(from_grid(0 * total), random=random)\n"
        "            values = from_grid(total) + values / max(1, num_users)\n",
        tests=(f"{SUM_TESTS}::TestNoise",),
    ),
    Mutation(
        name="noise share without the square root",
        file=f"{PRIVACY}/mechanisms.py",
        before="part = math.sqrt(num_shares / of)",
        after="part = num_shares / of",
        tests=("tests/privacy/test_mechanisms.py", f"{SUM_TESTS}::TestNoise"),
    ),
    Mutation(
        name="one noise share dropped",
        file="flower_privsyn/client_apps/private_sum.py",
        before="num_shares=num_users,\n                of=",
        after="num_shares=num_users - 1,\n                of=",
        tests=(f"{SUM_TESTS}::TestNoise",),
    ),
    Mutation(
        name="the sum is clipped, not each user",
        file="flower_privsyn/queries/query.py",
        before="        return self._clip(statistic)\n",
        after="        whole = self._clip(statistic.sum(axis=0, keepdims=True))\n"
        "        return np.repeat(whole, len(statistic), axis=0) / max(1, len(statistic))\n",
        tests=("tests/queries",),
    ),
    Mutation(
        name="fixed-size sampling accounted as Poisson",
        file=f"{PRIVACY}/accounting.py",
        before='return ("fixed", multiplier / 2.0, sampling.rate, 1)',
        after='return ("poisson", multiplier, sampling.rate, 1)',
        tests=(f"{ACCOUNTING}::test_fixed_size_cohorts_cost_what_an_instance_of_them_shows",),
    ),
    Mutation(
        name="replace-one does not double the sensitivity",
        file=f"{PRIVACY}/accounting.py",
        before='return ("gaussian", multiplier / 2.0 if replaced else multiplier, 1.0, 1)',
        after='return ("gaussian", multiplier, 1.0, 1)',
        tests=(f"{ACCOUNTING}::test_replace_one_doubles_the_sensitivity_by_both_accountants",),
    ),
    Mutation(
        name="noise comes from a fixed seed",
        file=f"{PRIVACY}/randomness.py",
        before='np.frombuffer(os.urandom(8 * n), dtype="<u8").astype(np.uint64, copy=False)',
        after="np.random.default_rng(0).integers(0, 2**64, size=n, dtype=np.uint64)",
        tests=("tests/privacy/test_randomness.py", f"{SUM_TESTS}::TestNoise"),
    ),
    Mutation(
        name="NaN passes the clip",
        file=f"{PRIVACY}/clipping.py",
        before="    rows[~np.isfinite(rows).all(axis=1)] = 0.0\n",
        after="",
        tests=("tests/queries", "tests/privacy/test_clipping.py"),
    ),
    Mutation(
        name="the cap on samples is not enforced",
        file="flower_privsyn/queries/query.py",
        before="return cohort if self.max_records is None else cohort.cap(self.max_records)",
        after="return cohort",
        tests=("tests/queries",),
    ),
    Mutation(
        name="an interrupted round is not charged",
        file=f"{PRIVACY}/ledger.py",
        before="            for planned in list(ledger._pending.values()):\n",
        after="            ledger._pending.clear()\n"
        "            for planned in list(ledger._pending.values()):\n",
        tests=(LEDGER_TESTS, f"{SUM_TESTS}::TestResume"),
    ),
    Mutation(
        name="the ledger is written after the release is used",
        file=STRATEGY,
        before="        ledger.charge(round=number, num_users=num_users)\n        if settings",
        after="        self.update(\n"
        "            ReleasedSum(\n"
        "                round_number=number, values=total, noise_std=0.0, num_users=num_users\n"
        "            ),\n"
        "            last=False,\n"
        "        )\n"
        "        ledger.charge(round=number, num_users=num_users)\n        if settings",
        tests=(f"{SUM_TESTS}::TestLedgerComesFirst",),
    ),
    Mutation(
        name="the budget is not checked",
        file=f"{PRIVACY}/ledger.py",
        before="        if cost is None or not self._within_budget(cost):\n",
        after="        if False:\n",
        tests=(LEDGER_TESTS, f"{SUM_TESTS}::TestResume"),
    ),
    Mutation(
        name="all nodes flip their coins with one key",
        file=STRATEGY,
        before="                sampling_key=self._random.uint64(4).tobytes(),\n",
        after='                sampling_key=number.to_bytes(32, "big"),\n',
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="the size of a secret cohort is written down",
        file=f"{PRIVACY}/ledger.py",
        before="None if planned.sampling.hides_cohort else num_users",
        after="num_users",
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="the noise keeps the first round's clip norm",
        file=STRATEGY,
        before="mechanism = self._mechanism = self._mechanism_of(query, self.noise_multiplier)",
        after="mechanism = self._mechanism",
        tests=(f"{SUM_TESTS}::TestSampling",),
    ),
    Mutation(
        name="a lost ledger is not noticed",
        file=STRATEGY,
        before="        self._refuse_missing_lines(self._ledger)\n",
        after="",
        tests=(f"{SUM_TESTS}::TestResume",),
    ),
    Mutation(
        name="the cohort form forgets to clip",
        file=SIMILARITY,
        before="total += self._clip(self._scaled(exact_product(users, root), m)).sum(axis=0)",
        after="total += self._scaled(exact_product(users, root), m).sum(axis=0)",
        tests=(f"{SIMILARITY_TESTS}::TestTheBound", f"{SIMILARITY_TESTS}::TestTheCohortForm"),
    ),
    Mutation(
        name="scores are centred over all, not per prompt",
        file=SIMILARITY,
        before="        rows -= means[groups]\n",
        after="        rows -= rows.mean(axis=0)\n",
        tests=(f"{SIMILARITY_TESTS}::TestTheFormulas",),
    ),
    Mutation(
        name="scores are clipped before they are centred",
        file=SIMILARITY,
        before="scores = exact_product(users, RightFactor.of(_centred(broadcast, self.centre)))\n",
        after='raw = users @ _centred(broadcast, "none").T\n'
        "            raw /= np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1.0)\n"
        "            scores = raw - raw.mean(axis=1, keepdims=True)\n",
        tests=(f"{SIMILARITY_TESTS}::TestTheFormulas",),
    ),
    Mutation(
        name="rounding is blown up to a preference",
        file=SIMILARITY,
        before="decided = norms > _NO_PREFERENCE * np.sqrt(num_candidates)",
        after="decided = norms > 0.0",
        tests=(f"{SIMILARITY_TESTS}::TestTheCohortForm",),
    ),
    Mutation(
        name="the span's root is triangular at the users",
        file=SIMILARITY,
        before="    root = (directions * lengths) @ directions.T\n",
        after="    root = lengths[:, None] * directions.T\n",
        tests=(
            f"{SIMILARITY_TESTS}::TestTheSpan::test_more_dimensions_than_candidates",
            f"{SIMILARITY_TESTS}::TestTheCohortForm",
        ),
    ),
    Mutation(
        name="directions without length are inverted",
        file=SIMILARITY,
        before="kept = lengths > _RELATIVE_CUT * lengths.max(initial=0.0)",
        after="kept = lengths > 0.0",
        tests=(f"{SIMILARITY_TESTS}::TestTheSpan::test_no_direction_lengthens_the_noise",),
    ),
    Mutation(
        name="another prompt's factorisation is used",
        file=SIMILARITY,
        before="for name in sorted(broadcast)))\n",
        after='for name in ["candidates"]))\n',
        tests=(f"{SIMILARITY_TESTS}::TestTheCohortForm",),
    ),
    Mutation(
        name="features too long by the square root of two",
        file=KERNEL_MEAN,
        before="math.sqrt((1.0 - query.embedding_weight) * 2.0 / query.num_features)",
        after="math.sqrt((1.0 - query.embedding_weight) * 4.0 / query.num_features)",
        tests=(f"{KERNEL_MEAN_TESTS}::TestFeatures",),
    ),
    Mutation(
        name="frequencies multiplied by the bandwidth",
        file=KERNEL_MEAN,
        before="(normals / bandwidth)",
        after="(normals * bandwidth)",
        tests=(f"{KERNEL_MEAN_TESTS}::TestFeatures", f"{KERNEL_MEAN_TESTS}::TestFrequencies"),
    ),
    Mutation(
        name="frequencies from a generator that may change",
        file=KERNEL_MEAN,
        before="    normals = _normals(num_features // 2 * dimension, seed=seed)\n",
        after="    normals = np.random.default_rng(seed).standard_normal(\n"
        "        num_features // 2 * dimension\n    )\n",
        tests=(f"{KERNEL_MEAN_TESTS}::TestFrequencies",),
    ),
    Mutation(
        name="the noise stays in the squared discrepancy",
        file=KERNEL_MEAN,
        before=" - len(difference) * (noise_std / num_users) ** 2",
        after="",
        tests=(f"{KERNEL_MEAN_TESTS}::TestScores",),
    ),
    Mutation(
        name="a sketch of records, not of users",
        file="flower_privsyn/queries/user_means.py",
        before="    means /= np.maximum(counts, 1)[:, None]\n",
        after="",
        tests=(KERNEL_MEAN_TESTS, f"{SIMILARITY_TESTS}::TestTheFormulas"),
    ),
    Mutation(
        name="the rejected rank counted from zero",
        file=ROUNDS,
        before="        other = int(order[min(start + rejected_rank, stop) - 1])\n",
        after="        other = int(order[min(start + rejected_rank, stop - 1)])\n",
        tests=(f"{ROUNDS_TESTS}::TestRankPairs",),
    ),
    Mutation(
        name="scores looked up by text",
        file=ROUNDS,
        before="    order = np.lexsort((-np.asarray(scores, dtype=np.float64), group))\n",
        after="    first = [list(texts).index(text) for text in texts]\n"
        "    order = np.lexsort((-np.asarray(scores, dtype=np.float64)[first], group))\n",
        tests=(f"{ROUNDS_TESTS}::TestRankPairs",),
    ),
    Mutation(
        name="the end of a cut response taught as an end",
        file=ROUNDS,
        before='                    ends.append(end if whole.endswith(text) else "")\n',
        after="                    ends.append(end)\n",
        tests=(f"{ROUNDS_TESTS}::TestCandidates",),
    ),
    Mutation(
        name="every round trains from the public model",
        file=ROUNDS,
        before="                    adapter=self.adapter(number),\n",
        after="                    adapter=None,\n",
        tests=(f"{ROUNDS_TESTS}::TestLearning",),
    ),
    Mutation(
        name="scores from other numbers than nodes have seen",
        file=ROUNDS,
        before="embeddings.astype(self._config.broadcast_precision).astype(np.float32)",
        after="embeddings",
        tests=(f"{ROUNDS_TESTS}::TestCandidates", f"{POPRI_TESTS}::TestWholeRun"),
    ),
    Mutation(
        name="a round learned from twice",
        file=ROUNDS,
        before="        if (record := self.learned(number)) is not None:\n",
        after="        if (record := None) is not None:\n",
        tests=(f"{ROUNDS_TESTS}::TestLearning",),
    ),
    Mutation(
        name="the worst checkpoint",
        file=ROUNDS,
        before="    return min(distances, key=lambda number: (distances[number], number))\n",
        after="    return max(distances, key=lambda number: (distances[number], number))\n",
        tests=(f"{POPRI_TESTS}::TestCheckpointByTheReleasedSketch",),
    ),
    Mutation(
        name="a kernel mean that nobody released",
        file="flower_privsyn/strategies/popri.py",
        before="        return self._ask_sketch() if self._kernel is not None else self._ask(1)\n",
        after="        return self._ask(1)\n",
        tests=(f"{POPRI_TESTS}::TestCheckpointByTheReleasedSketch",),
    ),
    Mutation(
        name="research without a stamp",
        file="flower_privsyn/strategies/popri.py",
        before="        return RESEARCH_STAMP if self.config.research else None\n",
        after="        return None\n",
        tests=(f"{POPRI_TESTS}::TestResearch",),
    ),
    Mutation(
        name="research by the sketch without a stamp",
        file="flower_privsyn/strategies/kernel_sketch.py",
        before="        return RESEARCH_STAMP if self.config.research else None\n",
        after="        return None\n",
        tests=(f"{SKETCH_TESTS}::TestResearch",),
    ),
    Mutation(
        name="what was kept for one request answers another",
        file="flower_privsyn/client_apps/private_sum.py",
        before="            request,\n        )\n        with self._lock:\n",
        after="        )\n        with self._lock:\n",
        tests=("tests/client_apps/test_private_sum.py",),
    ),
    Mutation(
        name="a run that has ended goes on asking",
        file=STRATEGY,
        before="        if self._ended:\n            # Flower's loop",
        after="        if False:\n            # Flower's loop",
        tests=(f"{POPRI_TESTS}::TestPatience",),
    ),
    Mutation(
        name="a run that had ended asks again when resumed",
        file=STRATEGY,
        before="        if self._rounds_before >= total or ended:\n",
        after="        if self._rounds_before >= total:\n",
        tests=(f"{POPRI_TESTS}::TestPatience",),
    ),
    Mutation(
        name="a witness that forgets what is covered",
        file="flower_privsyn/strategies/kernel_sketch.py",
        before="        return sketch.witness_scores(embeddings, embeddings)\n",
        after="        return sketch.mean_scores(embeddings)\n",
        tests=(f"{SKETCH_TESTS}::TestPreferences",),
    ),
    Mutation(
        name="herding that does not count what was chosen",
        file="flower_privsyn/strategies/parts/sketch.py",
        before="            covered += rows @ rows[chosen[step]]\n",
        after="",
        tests=(f"{SKETCH_TESTS}::TestSketch",),
    ),
    Mutation(
        name="a resumed run with other features",
        file="flower_privsyn/strategies/parts/sketch.py",
        before="    if file.exists():\n        try:\n            return _kernel",
        after="    if False:\n        try:\n            return _kernel",
        tests=(f"{SKETCH_TESTS}::TestKernel",),
    ),
    Mutation(
        name="the clipping bit without its half shift",
        file="flower_privsyn/queries/model_delta.py",
        before="np.where(lengths <= bound, self._bit, -self._bit)",
        after="np.where(lengths <= bound, 2 * self._bit, 0.0)",
        tests=("tests/queries/test_model_delta.py",),
    ),
    Mutation(
        name="update and bit have a bound each, and one noise",
        file="flower_privsyn/queries/model_delta.py",
        before="        return self.clip_to / self.unit / math.sqrt(1.0 - self.bit_share**2)\n",
        after="        return self.clip_to / self.unit\n",
        tests=("tests/queries/test_model_delta.py::TestAdaptiveClipping",),
    ),
    Mutation(
        name="a user is trained from where the one before ended",
        file="flower_privsyn/training/local.py",
        before="            return None\n        self._begin_anew()\n",
        after="            return None\n",
        tests=("tests/training/test_local.py::TestUpdate",),
    ),
    Mutation(
        name="running statistics pass from user to user",
        file="flower_privsyn/training/local.py",
        before="            module._buffers[name] = buffer\n            buffer.copy_(value)\n",
        after="            pass\n",
        tests=("tests/training/test_local.py::TestUpdate",),
    ),
    Mutation(
        name="updates are averaged over those who answered",
        file="flower_privsyn/strategies/parts/federated_training.py",
        before="query.mean_update(release.values, self.expected_users)",
        after="query.mean_update(release.values, release.num_users or 1)",
        tests=("tests/strategies/test_dp_fedavg.py::TestNoise",),
    ),
    Mutation(
        name="one participation is accounted for, whatever the pattern",
        file=f"{PRIVACY}/factorisation.py",
        before="range(0, min(participation.most * gap, self.rounds), gap)",
        after="range(0, 1)",
        tests=(
            "tests/privacy/test_factorisation.py::test_sensitivity_against_brute_force",
            f"{CORRELATED}::test_the_claimed_epsilon_is_neither_broken_nor_out_of_reach",
        ),
    ),
    Mutation(
        name="a visited node counts once however often it is visited",
        file=f"{PRIVACY}/trees.py",
        before='squared += np.einsum("ij,ij->i", visits, visits)',
        after='squared += np.einsum("ij->i", visits)',
        tests=(
            "tests/privacy/test_factorisation.py::test_sensitivity_of_turns",
            "tests/privacy/test_published_numbers.py::test_popri_trees_recomputed",
        ),
    ),
    Mutation(
        name="restarts of a tree are not counted",
        file=f"{PRIVACY}/trees.py",
        before="        return (length,) * whole + ((rest,) if rest else ())\n",
        after="        return (length,)\n",
        tests=(
            "tests/privacy/test_published_numbers.py::test_popri_trees_as_printed_are_twenty_epochs",
        ),
    ),
    Mutation(
        name="every correlated round is covered, the first as well",
        file=f"{PRIVACY}/ledger.py",
        before="        return stream is not None and stream.charged is not None\n",
        after="        return True\n",
        tests=(f"{CORRELATED}::test_the_first_round_pays_for_all", f"{FTRL_TESTS}::TestNoise"),
    ),
    Mutation(
        name="a correlated round may be begun twice",
        file=f"{PRIVACY}/ledger.py",
        before="        if planned.round <= max(stream.started):\n",
        after="        if False:\n",
        tests=(f"{CORRELATED}::test_no_round_is_asked_twice",),
    ),
    Mutation(
        name="correlated rounds may get noisier or less so",
        file=f"{PRIVACY}/ledger.py",
        before="first.mechanism.noise_multiplier != planned.mechanism.noise_multiplier",
        after="False",
        tests=(f"{CORRELATED}::test_later_rounds_must_be_what_the_first_was_charged_as",),
    ),
    Mutation(
        name="the innovations' noise multiplier is taken for that of all rounds",
        file=f"{PRIVACY}/correlated_noise.py",
        before="        return round_multiplier / self.sensitivity\n",
        after="        return round_multiplier\n",
        tests=(
            f"{CORRELATED}::test_the_first_round_pays_for_all",
            f"{FTRL_TESTS}::TestSettings::test_public_llms_trees",
        ),
    ),
    Mutation(
        name="correlated noise forgets a round that was left out",
        file=f"{PRIVACY}/correlated_noise.py",
        before="        for _ in range(step - self._step):\n"
        "            noise = self._recurrence.next(lambda: self._innovation(size))\n"
        "            self._step += 1\n",
        after="        noise = self._recurrence.next(lambda: self._innovation(size))\n"
        "        self._step = step\n",
        tests=(f"{CORRELATED}::test_a_round_that_was_left_out_costs_its_noise",),
    ),
    Mutation(
        name="the memory of the noise is written after the round is out",
        file=f"{PRIVACY}/correlated_noise.py",
        before="        self._save()\n        self._prepared = noise\n",
        after="        self._prepared = noise\n",
        tests=(
            f"{CORRELATED}::test_the_memory_is_on_the_disk_before_the_noise_is_used",
            f"{FTRL_TESTS}::TestRestart",
        ),
    ),
    Mutation(
        name="a lost memory of the noise is not noticed",
        file=STRATEGY,
        before="        if released is not None and released > self._noise.last_round:\n",
        after="        if False:\n",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="the memory of the noise outlives a run whose last round was lost",
        file=STRATEGY,
        before="                self._forget_noise()\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestRestart",),
    ),
    Mutation(
        name="correlated rounds are released with independent noise",
        file=STRATEGY,
        before="            random = self._noise\n",
        after="",
        tests=(f"{FTRL_TESTS}::TestNoise",),
    ),
    Mutation(
        name="turns depend on the node's order of users",
        file=f"{PRIVACY}/participation.py",
        before="            mark.update(user_id.encode())\n",
        after="            mark.update(str(index).encode())\n",
        tests=("tests/privacy/test_participation.py", f"{FTRL_TESTS}::TestTurns"),
    ),
    Mutation(
        name="every round asks the first group",
        file=f"{PRIVACY}/participation.py",
        before="(self.round_number - 1) % self.groups",
        after="0 * self.round_number",
        tests=("tests/privacy/test_participation.py", f"{FTRL_TESTS}::TestTurns"),
    ),
    Mutation(
        name="an exception's text leaves the client",
        file="flower_privsyn/client_apps/private_sum.py",
        before="            exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
        "        )\n"
        "        return wire.error_reply(wire.ClientErrorCode.INTERNAL, message)\n",
        after="            exc_info=bool(os.environ.get(environment.CLIENT_TRACEBACK)),\n"
        "        )\n"
        "        from flwr.app import Error\n\n"
        "        return Message(Error(code=1000, reason=str(error)), reply_to=message)\n",
        tests=(f"{SUM_TESTS}::TestWhatLeavesAClient",),
    ),
    Mutation(
        name="an evaluation on private text without its stamp",
        file="flower_privsyn/evaluation/result.py",
        before='        return {"stamp": STAMP, **_plain_fields(self)}',
        after='        return {k: v for k, v in _plain_fields(self).items() if k != "stamp"}',
        tests=("tests/evaluation/test_result.py",),
    ),
    Mutation(
        name="a stamped record inside another one is not stamped",
        file="flower_privsyn/evaluation/result.py",
        before="    if is_dataclass(value) and not isinstance(value, type):\n"
        "        return _plain_fields(value)\n",
        after="    if is_dataclass(value) and not isinstance(value, type):\n"
        '        return {k: v for k, v in _plain_fields(value).items() if k != "stamp"}\n',
        tests=("tests/evaluation/test_result.py",),
    ),
    Mutation(
        name="a round's communication tells whether anybody took part",
        file=STRATEGY,
        before="        if self._traffic is not None:\n",
        after="        if self._traffic is not None and self._asked:\n",
        tests=(
            "tests/evaluation/test_costs.py::TestCountedInARun::test_what_is_counted_says_nothing_about_who_took_part",
        ),
    ),
    Mutation(
        name="a node's CPU time travels with its answer",
        file="flower_privsyn/client_apps/private_sum.py",
        before="            reply = handler(message, context)\n",
        after="            reply = handler(message, context)\n"
        "            from flwr.app import MetricRecord\n"
        '            reply.content["cpu"] = MetricRecord({"seconds": 1.0})\n',
        tests=("tests/evaluation/test_costs.py::TestClientTime",),
    ),
    Mutation(
        name="figures on private text beside what was released",
        file="flower_privsyn/evaluation/run.py",
        before="(work is None or _inside(work, run.path))",
        after="work is None",
        tests=(
            "tests/evaluation/test_run.py::TestEvaluateRun::test_no_work_folder_in_the_run_directory",
        ),
    ),
    Mutation(
        name="users who took part are measured as held out",
        file="flower_privsyn/evaluation/run.py",
        before="set(private.user_ids) & set(held_out.user_ids)",
        after="set(private.user_ids) & set()",
        tests=(
            "tests/evaluation/test_run.py::TestEvaluateRun::test_users_who_took_part_are_not_held_out",
        ),
    ),
    Mutation(
        name="a fine-tuning goes on without its optimiser's state",
        file="flower_privsyn/training/causal.py",
        before='        optimiser.load_state_dict(state["optimiser"])\n',
        after="",
        tests=(
            "tests/training/test_causal.py::TestResume::test_a_killed_training_ends_with_the_same_bits",
        ),
    ),
    Mutation(
        name="a resumed fine-tuning draws another dropout",
        file="flower_privsyn/training/causal.py",
        before="            torch.manual_seed(_mixed(seed, step))\n",
        after="            if step == 0:\n                torch.manual_seed(_mixed(seed, step))\n",
        tests=(
            "tests/training/test_causal.py::TestResume::test_a_killed_training_ends_with_the_same_bits",
        ),
    ),
    Mutation(
        name="what was learned of candidates is used for others",
        file="flower_privsyn/queries/once_per_array.py",
        before="        if array.flags.writeable or not array.flags.owndata:\n",
        after="        if False:\n",
        tests=("tests/queries/test_once_per_array.py",),
    ),
    Mutation(
        name="a late reply is handed out as another question's",
        file="flower_privsyn/messages/window.py",
        before="                    if answered not in mine:\n",
        after="                    if False:\n",
        tests=("tests/messages/test_window.py",),
    ),
    Mutation(
        name="another strategy goes on with a run",
        file="flower_privsyn/private_path/engine.py",
        before="        if strategy != type(self).__name__:\n",
        after="        if False:\n",
        tests=("tests/private_path/test_engine.py",),
    ),
    Mutation(
        name="a node answers about another run's file",
        file="flower_privsyn/client_apps/private_sum.py",
        before="            tuple(sorted((k, v) for k, v in context.run_config.items())),\n",
        after="",
        tests=("tests/client_apps/test_records.py",),
    ),
)


def every_mutation() -> tuple[Mutation, ...]:
    """The mistakes listed here and in the modules beside this one, `MUTATIONS` in each."""
    others = sorted(p.stem for p in Path(__file__).parent.glob("*.py"))
    found = [import_module(name) for name in others if name not in ("run", "mutation")]
    return MUTATIONS + tuple(m for module in found for m in module.MUTATIONS)


def pytest(folder: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy against that copy's package."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def plant(folder: Path, mutation: Mutation) -> str:
    """Write the mistake into the copy; return the file's original text."""
    path = folder / mutation.file
    original = path.read_text(encoding="utf-8")
    if original.count(mutation.before) != 1:
        raise SystemExit(
            f'{mutation.name}: "{mutation.before}" occurs {original.count(mutation.before)} times '
            f"in {mutation.file}, expected once"
        )
    path.write_text(original.replace(mutation.before, mutation.after), encoding="utf-8")
    return original


def main() -> int:
    """Plant every mistake in turn; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutations")
    chosen = parser.parse_args().names
    mutations = [m for m in every_mutation() if not chosen or m.name in chosen]
    survived = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "copy"
        shutil.copytree(
            ROOT,
            folder,
            symlinks=True,
            ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache", "*.safetensors"),
        )
        every_test = tuple(dict.fromkeys(test for m in mutations for test in m.tests))
        sound = pytest(folder, every_test)
        if sound.returncode != 0:
            print(sound.stdout[-2000:])
            print("the tests fail without any mistake")
            return 1
        for mutation in mutations:
            original = plant(folder, mutation)
            outcome = pytest(folder, mutation.tests)
            (folder / mutation.file).write_text(original, encoding="utf-8")
            caught = outcome.returncode == 1
            survived += not caught
            detail = next(
                (line for line in outcome.stdout.splitlines() if line.startswith("FAILED")), ""
            )
            print(f"{'caught  ' if caught else 'SURVIVED'}  {mutation.name:<46} {detail[7:110]}")
    print(f"{len(mutations) - survived} of {len(mutations)} mistakes caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())

"""Seconds, CPU time and memory of rounds with up to a million users, through `privsyn run`.

    python -m benchmarks.scale measure [--users 1000 10000] [--methods pe-1024 pe-2048 popri-18000]
                                       [--participation full 1000] [--nodes 16] [--rounds 3]
    python -m benchmarks.scale table

`measure` makes the users (`benchmarks/simulated.py`), runs `benchmarks/scale-app` once to put the
records on the disk (its time to the first question and its memory stand in the lines too), then
once per line of the grid, and adds every line to `--output` (JSON), which `table` turns into
docs/speed.md's table and plot. With `--prepared` and a cache that is empty, the first line does
both in one run. The app asks a method's question about random candidates, through the package's own
requests, answers, ledger and noise; generating and training are left out, because they depend on
the models and not on the users.

A round lasts from the moment its candidates are there to the moment its release is (so transport,
nodes, accounting and noise are in it). The first round of a run is told apart: actors read, map and
factorise in it what later rounds find. CPU time is that of the whole process tree between the same
moments, and of the nodes alone inside their handlers. Memory is the sum over the tree of the
proportional set size, in which a page that four processes share counts once; where the kernel does
not tell it, the resident set size, in which it counts four times.

Floors: the floating-point operations of the question and the bytes of records it has to read,
beside what one core of this machine does in a matrix product.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks import Ratio
from benchmarks.scale_table import row, table

APP = Path(__file__).parent / "scale-app"
METHODS = {
    "pe-1024": ("private-evolution", 1024),
    "pe-2048": ("private-evolution", 2048),
    "popri-18000": ("popri", 18_000),
}
DIMENSION = 384
_INTERVAL = 0.5


class Watch:
    """CPU seconds and memory of a process and all its descendants, sampled."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu: dict[tuple[int, float], float] = {}
        self.samples: list[tuple[float, float, float, int]] = []  # time, CPU s, bytes, processes
        self.largest: dict[str, float] = {}
        self.proportional = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_INTERVAL):
            self._sample()

    def _sample(self) -> None:
        by_name: dict[str, int] = {}
        total, count = 0, 0
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.Error:
            return
        for process in processes:
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    name = process.name()
                used = self._memory(process)
            except psutil.Error:
                continue
            total += used
            count += 1
            by_name[name] = max(by_name.get(name, 0), used)
        for name, used in by_name.items():
            self.largest[name] = max(self.largest.get(name, 0), used)
        self.samples.append((time.time(), sum(self._cpu.values()), total, count))

    def _memory(self, process: psutil.Process) -> int:
        if self.proportional:
            try:
                return int(process.memory_full_info().pss)
            except (AttributeError, psutil.AccessDenied):
                self.proportional = False
        return int(process.memory_info().rss)

    @property
    def peak_bytes(self) -> float:
        """Largest sum over all processes at one moment."""
        return max((used for _, _, used, _ in self.samples), default=0.0)

    def cpu_between(self, begin: float, end: float) -> float:
        """CPU seconds of the tree between two moments, interpolated."""
        times = [moment for moment, _, _, _ in self.samples]
        cpu = [seconds for _, seconds, _, _ in self.samples]
        first, last = np.interp([begin, end], times, cpu)
        return float(last - first)


def run_app(run_dir: Path, cache: Path, settings: dict[str, Any]) -> tuple[Watch, float]:
    """One `privsyn run`, watched; the wall seconds of the whole command with it."""
    command = [sys.executable, "-m", "flower_privsyn.cli", "run", str(APP)]
    command += ["--run-dir", str(run_dir)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    nodes_file = run_dir.with_suffix(".nodes.jsonl")
    environment = {
        **os.environ,
        "PRIVSYN_CACHE": str(cache),
        "PRIVSYN_CPU_TIME": str(nodes_file),
        "PYTHONPATH": os.pathsep.join(
            filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        ),
    }
    started = time.time()
    with (
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
        Watch(process.pid) as watch,
    ):
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{output}")
    return watch, time.time() - started


def run_in_process(run_dir: Path, cache: Path, settings: dict[str, Any]) -> tuple[Watch, float]:
    """The same strategy and nodes in this process, one after the other, without Flower's.

    Wall seconds and memory are then not those of a run; CPU seconds of the nodes are, whatever else
    the machine is doing.
    """
    sys.path.insert(0, str(APP))
    from scale_app.client_app import embedder
    from scale_app.server_app import OWN_KEYS, Asking, Questions

    from flower_privsyn.client_apps import create_client_app
    from flower_privsyn.data import load_users
    from flower_privsyn.host.app import load_app, resolve_config
    from flower_privsyn.strategies import PrivateSumConfig
    from flower_privsyn.testing import LoopbackGrid, flower_identity

    values = resolve_config(
        load_app(APP), settings=[f"{key}={value}" for key, value in settings.items()]
    )
    values["run-dir"] = str(run_dir)
    own = {key: values[key] for key in OWN_KEYS}
    config = PrivateSumConfig.from_run_config(values, other_keys=OWN_KEYS)
    users = load_users(values["data"])
    os.environ["PRIVSYN_CPU_TIME"] = str(run_dir.with_suffix(".nodes.jsonl"))
    app = create_client_app(
        lambda context: users.deal(
            partition_id=int(context.node_config["partition-id"]),
            num_partitions=int(context.node_config["num-partitions"]),
        ),
        embedder=embedder,
        cache_directory=cache,
    )
    started = time.time()
    with Watch(os.getpid()) as watch, flower_identity():
        Asking(config, Questions(config, own)).start(LoopbackGrid(app, num_nodes=config.num_nodes))
    return watch, time.time() - started


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measured(run_dir: Path, watch: Watch, wall: float) -> dict[str, Any]:
    """What one run tells about its rounds."""
    from flower_privsyn.run.owner import OwnerFolder

    clock = OwnerFolder(run_dir).times()
    asked = {line["round"]: line for line in clock if line["event"] == "asked"}
    answered = {line["round"]: line for line in clock if line["event"] == "answered"}
    rounds = [(asked[n]["time"], answered[n]["time"]) for n in sorted(answered)]
    nodes = json_lines(run_dir.with_suffix(".nodes.jsonl"))
    node_cpu = sum(line["cpu_seconds"] for line in nodes if line["message"] != "query.prepare")
    seconds = [end - begin for begin, end in rounds]
    cpu = [watch.cpu_between(begin, end) for begin, end in rounds]
    later = slice(1, None) if len(rounds) > 1 else slice(None)
    return {
        "rounds": len(rounds),
        "seconds_first_round": seconds[0],
        "seconds_round": statistics.median(seconds[later]),
        "seconds_all_rounds": sum(seconds),
        "seconds_before": rounds[0][0] - watch.samples[0][0],
        "seconds_command": wall,
        "cpu_seconds_round": statistics.median(cpu[later]),
        "cpu_seconds_nodes_round": node_cpu / len(rounds),
        "cpu_seconds_prepare": sum(
            line["cpu_seconds"] for line in nodes if line["message"] == "query.prepare"
        ),
        "peak_bytes": watch.peak_bytes,
        "memory": "PSS" if watch.proportional else "RSS",
        "largest_process_bytes": dict(sorted(watch.largest.items(), key=lambda item: -item[1])[:4]),
        "cohorts": [line.get("num_users") for line in json_lines(run_dir / "metrics.jsonl")],
        "bytes_down_per_node": json_lines(run_dir / "metrics.jsonl")[0]["bytes_down"],
    }


def floors(question: str, candidates: int, samples: int, asked: float) -> dict[str, float]:
    """Operations and bytes nobody can do without in this form of the question."""
    rows, d = asked * samples, DIMENSION
    if question == "popri":
        # Mean record of each user, and its image under the (d, d) root; C'C once.
        operations = rows * d + 2.0 * asked * d * d + 2.0 * candidates * d * d
    else:
        operations = 2.0 * rows * candidates * d
    return {"floor_operations": operations, "floor_bytes": rows * d * 4.0}


def core_speed() -> float:
    """Floating-point operations a CPU second of one core in a float32 matrix product."""
    size = 1024
    matrix = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    matrix @ matrix
    speeds = []
    for _ in range(5):
        started = time.process_time()
        matrix @ matrix
        speeds.append(2.0 * size**3 / max(time.process_time() - started, 1e-9))
    return statistics.median(speeds)


def population(work: Path, users: int, samples: int) -> Path:
    """The file of users, written if it is not there."""
    from benchmarks.simulated import simulate_users

    path = work / f"population-{users}x{samples}.parquet"
    if not path.exists():
        simulate_users(path, users=users, samples_per_user=samples)
    return path


def measure(arguments: argparse.Namespace) -> list[Ratio]:
    """Run the grid and add its lines to the output."""
    work = Path(arguments.work or tempfile.mkdtemp(prefix="privsyn-scale-")).absolute()
    work.mkdir(parents=True, exist_ok=True)
    output = Path(arguments.output)
    lines = json.loads(output.read_text())["lines"] if output.exists() else []
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "operations_per_cpu_second": core_speed(),
    }
    run = run_in_process if arguments.in_process else run_app
    new = []
    for users in arguments.users:
        path = population(work, users, arguments.samples)
        for nodes in arguments.nodes:
            base = {
                "data": path,
                "num-nodes": nodes,
                "max-samples": arguments.samples,
                "embedding-model": arguments.embedding_model,
            }
            prepared = arguments.prepared
            preparing: dict[str, Any] | None = None
            for participation in arguments.participation:
                share = 1.0 if participation == "full" else int(participation) / users
                if share >= 1 and participation != "full":
                    continue
                for method in arguments.methods:
                    question, candidates = METHODS[method]
                    settings = {
                        **base,
                        "question": question,
                        "num-candidates": candidates,
                        "num-rounds": arguments.rounds,
                        "sampling": "full" if share == 1 else "poisson",
                        "sampling-rate": share,
                    }
                    if not prepared:
                        first = {**settings, "num-rounds": 1, "num-candidates": 100}
                        prepare_dir = work / f"prepare-{time.time_ns()}"
                        done = run(prepare_dir, work / "cache", first)
                        preparing = measured(prepare_dir, *done)
                        prepared = True
                    load = os.getloadavg()[0]
                    run_dir = work / f"run-{time.time_ns()}"
                    line = {
                        "method": method,
                        "users": users,
                        "samples": arguments.samples,
                        "participation": participation,
                        "nodes": nodes,
                        "candidates": candidates,
                        "embedding_model": arguments.embedding_model,
                        "in_process": arguments.in_process,
                        "preparing": preparing,
                        **measured(run_dir, *run(run_dir, work / "cache", settings)),
                        **floors(question, candidates, arguments.samples, share * users),
                        "load_before": load,
                        "load_after": os.getloadavg()[0],
                        "machine": machine,
                    }
                    lines.append(line)
                    new.append(line)
                    output.write_text(json.dumps({"lines": lines}, indent=1) + "\n")
                    print(row(line), flush=True)
    return [
        Ratio(
            f"a whole round, {line['method']}, {line['users']:,} users",
            "its products",
            "floor",
            line["cpu_seconds_round"],
            line["floor_operations"] / line["machine"]["operations_per_cpu_second"],
            "CPU s",
        )
        for line in new
    ]


def main(given: Sequence[str] | None = None) -> list[Ratio]:
    """Measure, or show what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    run = commands.add_parser("measure")
    run.add_argument("--users", type=int, nargs="+", default=[1000, 10_000, 72_000, 133_000])
    run.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    run.add_argument("--participation", nargs="+", default=["full", "1000"])
    run.add_argument("--nodes", type=int, nargs="+", default=[16])
    run.add_argument("--samples", type=int, default=5)
    run.add_argument("--rounds", type=int, default=3)
    run.add_argument("--embedding-model", default="pseudo")
    run.add_argument(
        "--in-process", action="store_true", help="CPU seconds alone, without Flower's processes"
    )
    run.add_argument(
        "--prepared", action="store_true", help="skip the run that puts the records on the disk"
    )
    run.add_argument("--work", help="folder for users, records and runs (default: a new one)")
    run.add_argument("--output", default="research/results/scale.json")
    run.set_defaults(command=measure)
    show = commands.add_parser("table")
    show.add_argument("--output", default="research/results/scale.json")
    show.add_argument("--plot", default="docs/scale.png")
    show.set_defaults(
        command=lambda given: table(Path(given.output), Path(given.plot) if given.plot else None)
    )
    arguments = parser.parse_args(given)
    found: list[Ratio] = arguments.command(arguments) or []
    return found


if __name__ == "__main__":
    main()

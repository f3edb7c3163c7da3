"""Arrays that Ray's processes share: what they are to Flower, to pickle, and to Ray."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from flower_privsyn.messages.shared_array import SharedArray, content_digest

VALUES = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float16)

#: Two processes are sent the same record five times, and a changed one.
THROUGH_RAY = """
import gc, json, pickle, time
import numpy as np, ray
from ray import cloudpickle
from flower_privsyn.messages import wire

values = np.random.default_rng(0).standard_normal((4000, 384)).astype(np.float32)
record = wire.broadcast_record({"candidates": values}, precision="float16")
plain = len(cloudpickle.dumps(record))
ray.init(num_cpus=2, include_dashboard=False)

@ray.remote
class Node:
    def answer(self, record):
        array = record["candidates"]
        before = "data" in array.__dict__
        read = wire.read_broadcast(record)["candidates"]
        return before, "data" in array.__dict__, read.tobytes(), bytes(array.data)

nodes = [Node.remote(), Node.remote()]
answers = [ray.get(node.answer.remote(record)) for node in nodes for _ in range(3)]
expected = values.astype(np.float16)
values[0, 0] += 1
other = wire.broadcast_record({"candidates": values}, precision="float16")
seen = {
    "plain": plain,
    "fetched": [answer[:2] for answer in answers],
    "right": all(
        answer[2] == expected.astype(np.float32).tobytes()
        and answer[3] == record["candidates"].data
        for answer in answers
    ),
    "other": ray.get(nodes[0].answer.remote(other))[2] == values.astype(np.float16)
        .astype(np.float32).tobytes(),
    "driver": wire.read_broadcast(record)["candidates"].tobytes()
        == expected.astype(np.float32).tobytes(),
}
del record, other
gc.collect()
held, until = 1, time.monotonic() + 20
while held and time.monotonic() < until:
    time.sleep(0.1)
    held = len(ray._private.worker.global_worker.core_worker.get_all_reference_counts())
record = wire.broadcast_record({"candidates": values}, precision="float16")
print(json.dumps({**seen, "held": held, "shared": len(cloudpickle.dumps(record))}))
"""


def test_it_is_an_array_by_every_name() -> None:
    shared, plain = SharedArray(VALUES), Array(VALUES)
    np.testing.assert_array_equal(shared.numpy(), VALUES)
    assert (shared.dtype, shared.shape, shared.stype, shared.data) == (
        plain.dtype,
        plain.shape,
        plain.stype,
        plain.data,
    )
    assert shared.object_id == plain.object_id  # what travels over a network


def test_it_travels_over_a_network_as_flowers_own() -> None:
    content = RecordDict({"broadcast": ArrayRecord({"candidates": SharedArray(VALUES)})})
    objects = {name: each.deflate() for name, each in get_all_nested_objects(content).items()}
    arrived = inflate_object_from_contents(content.object_id, objects)
    array = arrived["broadcast"]["candidates"]
    assert type(array) is Array
    np.testing.assert_array_equal(array.numpy(), VALUES)
    assert content_digest(array) == content_digest(SharedArray(VALUES))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_without_ray_a_copy_is_a_plain_array(copied: object) -> None:
    arrived = copied(SharedArray(VALUES))  # type: ignore[operator]
    assert type(arrived) is Array
    np.testing.assert_array_equal(arrived.numpy(), VALUES)


def test_a_digest_depends_on_everything() -> None:
    changed = VALUES.copy()
    changed[3, 3] += 1
    variants = [
        VALUES,
        changed,
        VALUES.astype(np.float32),
        VALUES.reshape(6, 40),
        VALUES.view(np.int16),
        VALUES[:-1],
    ]
    assert len({content_digest(Array(values)) for values in variants}) == len(variants)
    assert all(
        content_digest(SharedArray(values)) == content_digest(Array(values)) for values in variants
    )


def test_ray_carries_the_bytes_to_a_process_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", THROUGH_RAY], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.strip().splitlines()[-1])
    assert seen["right"]
    assert seen["other"]
    assert seen["driver"]
    # A message holds a reference in place of 3 MB.
    assert seen["plain"] > 4000 * 384 * 2
    assert seen["shared"] < 10_000
    # Once a round is over and its record is gone, Ray gives up the bytes.
    assert seen["held"] == 0
    # Nobody had the bytes on arrival; the first one in a process read them, then they were known.
    assert seen["fetched"] == [[False, True], [False, False], [False, False]] * 2

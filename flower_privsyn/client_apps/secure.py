"""The client's side of secure aggregation: five steps, each a message and a process of its own.

Between two messages a node's secrets lie on its disk, beside the key by which other nodes know it.
They are there, mode 0600, before a message leaves. Each step takes the state of the one before it,
so none is taken twice, also after `kill -9`; a round's number must be above all before it in its
run; after the last step nothing of the round is left. Of a round that its server never ended, what
a step left stays until the next round of the run, or one of any run after seven days, looked for
once an hour in a process. The folder must be the node's own, and must not come back from a backup:
a state that comes back can be gone on with twice.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar
from zlib import crc32

import numpy as np
from flwr.app import Context, Message

from flower_privsyn.checks import raised_as
from flower_privsyn.client_apps.guard import NodeGuard, guard_of, in_simulation
from flower_privsyn.environment import NODE_STATE
from flower_privsyn.errors import ConfigError, NotAllowedError, ProtocolError
from flower_privsyn.files import (
    expanded,
    leftovers,
    os_errors_as,
    own_folder,
    remove_old,
    replacing,
    state_folder,
    user_path,
    write_new,
)
from flower_privsyn.messages import secure as secure_wire
from flower_privsyn.messages import wire
from flower_privsyn.privacy import GaussianMechanism, SecureRandom
from flower_privsyn.privacy.mechanisms import STEPS
from flower_privsyn.secure_aggregation.codec import pack, unpack
from flower_privsyn.secure_aggregation.keys import NodeKey, digest, whole
from flower_privsyn.secure_aggregation.masks import Vector
from flower_privsyn.secure_aggregation.node import (
    Advertised,
    Agreed,
    Masked,
    Shared,
    State,
    advertise,
    agree,
    mask,
    receive,
    share,
    unmask,
)
from flower_privsyn.secure_aggregation.roster import Roster, Session
from flower_privsyn.secure_aggregation.terms import LEAST_STEPS, Terms

T = TypeVar("T", Advertised, Shared, Masked, Agreed)

#: Secrets of a round whose server never came back are kept for so long.
_FORGOTTEN_AFTER: Final = 7 * 24 * 3600.0

#: Files that nodes of one folder lock: two nodes seldom wait for each other.
_LOCKS: Final = 256


def _session_of(state: State) -> Session:
    """The round that a state belongs to."""
    return state.session if isinstance(state, Advertised) else state.roster.session


def secrets_folder() -> Path:
    """Where a node keeps its key and its secrets: PRIVSYN_NODE_STATE, else
    `flower-privsyn/secure-aggregation` in the user's state folder (`~/.local/state`).
    """  # noqa: D205 - one sentence
    return expanded(os.environ.get(NODE_STATE) or state_folder() / "secure-aggregation")


def key_file(node_config: Mapping[str, Any]) -> Path:
    """The file of a node's key: `node-key` of its configuration, else one in `secrets_folder`."""
    named = str(node_config.get("node-key", ""))
    return user_path(named) if named else secrets_folder() / "node-key"


def make_node_key(path: Path) -> NodeKey:
    """Make a node's key, readable by its owner alone.

    Raises:
        ConfigError: There is one already, or the file cannot be written.
    """
    key = NodeKey.generate()
    write_new(path, f"{key.secret.hex()}\n", for_the_owner=True)
    return key


def read_node_key(path: Path) -> NodeKey:
    """A node's key.

    Raises:
        NotAllowedError: There is none, others can read it, or it is no key.
    """
    try:
        text, mode = path.read_text(encoding="ascii"), path.stat().st_mode & 0o777
    except (OSError, ValueError):
        raise NotAllowedError(
            f"This node can read no key for secure aggregation at {path}; `privsyn node key "
            "--init` makes one (--node-config 'node-key=\"...\"' names another file)."
        ) from None
    if mode & 0o077:
        raise NotAllowedError(
            f"The node's key {path} has mode {mode:04o}; others than its owner must not read it "
            "(chmod 600)."
        )
    try:
        return NodeKey(bytes.fromhex(text.strip()))
    except ValueError:
        raise NotAllowedError(f"The node's key {path} is not 64 hexadecimal digits.") from None


def check_state_folder() -> None:
    """Refuse to keep secrets where others could change them.

    Who can take away what a node has kept of a round can have it take a step twice.

    Raises:
        NotAllowedError: The folder is another user's, or others can write it.
    """
    unfit = (
        f"{secrets_folder()} cannot hold secrets of secure aggregation ({NODE_STATE} names another)"
    )
    with os_errors_as(NotAllowedError, unfit):
        own_folder(secrets_folder())


class RoundStore:
    """A node's side of the rounds of one run on its disk: one file, mode 0600.

    Formal guarantee:
        No two rounds of a run have one number, and no step of a round is taken twice, also by two
        processes at once: what a step needs is replaced by what the next one needs, on the disk,
        before anything leaves; a question that fails ends the round for this node
        (`SecureRounds.answer`). After a round none of its secrets is left in the file, nor in those
        that killed processes left of it. What rounds left whose servers never came back is deleted
        after seven days, when the next round of any run begins, once an hour in a process; with it
        goes the number that its run had come to, so that a round begun again then is another round,
        with new secrets, and charged again.

    Args:
        run: Flower's number of the run.
        node: Flower's number of the node.
    """

    def __init__(self, run: int, node: int) -> None:
        self._folder = secrets_folder()
        self.path = self._folder / f"{run}-{node}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes of this node waiting while a step is taken."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Locks that are shared and stay: one that is taken away could be held by one process and
        # made anew by another.
        path = self._folder / f"lock-{crc32(self.path.name.encode()) % _LOCKS}"
        lock = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def begin(self, state: State) -> None:
        """Begin a round, later than all before it; what was kept of the one before is gone.

        Args:
            state: After the first step.

        Raises:
            ProtocolError: A round of this number, or a later one, was begun before.
        """
        session = _session_of(state)
        last = int(self._read().get("last", 0))
        if session.round_number <= last:
            raise ProtocolError(
                f"round {session.round_number} of run {session.run} was begun before: this node "
                f"has come to round {last}"
            )
        _sweep(self._folder, int(time.time() // 3600))
        self._clear()
        self._write(session.round_number, state)

    def state(self, session: Session, kind: type[T]) -> T:
        """What is kept of a round.

        Args:
            session: The round.
            kind: The state after the step before.

        Raises:
            ProtocolError: Nothing, or it is of another step or round.
        """
        kept = self._read().get("state")
        if kept is None:
            raise ProtocolError(
                f"this node keeps nothing of round {session.round_number} of run {session.run}: "
                "it is over, or it was begun elsewhere"
            )
        if (step := kept.pop("step", "")) != kind.__name__:
            raise ProtocolError(
                f"this node has come to another step of the round ({step}): each step is taken once"
            )
        try:
            state = unpack(kind, {name: bytes.fromhex(one) for name, one in kept.items()})
        except (KeyError, TypeError, ValueError, ProtocolError) as error:
            raise ProtocolError("what this node kept of the round is damaged") from error
        if _session_of(state) != session:
            raise ProtocolError("this node is in another round")
        return state

    def keep(self, state: State | None) -> None:
        """Replace what is kept by what the next step needs: nothing, where no step may follow."""
        self._write(self._read()["last"], state)
        if state is None:
            self._clear()

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return {}
        except (OSError, TypeError, ValueError) as error:
            raise ProtocolError(f"{self.path} cannot be read") from error

    def _write(self, last: int, state: State | None) -> None:
        values: dict[str, Any] = {"last": last}
        if state is not None:
            held = {name: one.hex() for name, one in pack(state).items()}
            values["state"] = {"step": type(state).__name__, **held}
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(self.path, for_the_owner=True) as file:
            file.write(json.dumps(values).encode())

    def _clear(self) -> None:
        """Delete secrets that processes killed while they wrote have left of this file."""
        for path in leftovers(self.path):
            path.unlink(missing_ok=True)


@lru_cache(maxsize=1)  # a process that answers for many nodes would look at the files of all
def _sweep(folder: Path, hour: int) -> None:  # noqa: ARG001
    """Delete what rounds left whose server never came back.

    A step that is being taken with it finds nothing to replace, and fails.
    """
    kept = (*folder.glob("*-*.json"), *folder.glob(".*-*.json.*"))
    remove_old(kept, seconds=_FORGOTTEN_AFTER)


class SecureRounds:
    """Takes a node through the rounds of secure aggregation.

    Formal guarantee:
        That of `flower_privsyn.secure_aggregation.node`. To every answer the node adds normal noise
        of its own, rounded to the grid, of variance sigma^2 / (t - c), before it is masked; its
        users' coins are flipped with a key that no other party knows; and it answers with noise
        also where none of its users takes part. So a sum of at least t nodes, c of which collude
        and take their noise out, carries noise of standard deviation at least sigma.

    Args:
        read: from a message to the question in it.
        answer: checks a question against the owner's word, reads the arrays of its message, adds up
            the users' answers, and charges the account; with the answer it returns a bound, which
            is not used here.
    """

    def __init__(
        self,
        read: Callable[[Message], wire.Ask],
        answer: Callable[[wire.Ask, Message, Context], tuple[wire.Answer, float]],
    ) -> None:
        self._read = read
        self._answer = answer

    def show_keys(self, message: Message, context: Context) -> Message:
        """Fresh keys for a round, signed."""
        store, session = _store(context), _session(message, context)
        own = own_key(context, guard_of(context))
        state, card = advertise(session, context.node_id, own)
        with store.locked():
            store.begin(state)
        return Message(
            secure_wire.pack(secure_wire.Shown(run=context.run_id, card=card)), reply_to=message
        )

    def give_shares(self, message: Message, context: Context) -> Message:
        """Shares of this node's secrets, sealed for each neighbour."""
        store, session = _store(context), _session(message, context)
        invited = secure_wire.unpack(secure_wire.Invited, message)
        terms, cards = invited.terms, invited.cards
        guard = guard_of(context)
        guard.check_terms(terms, len(cards))
        with store.locked():
            state = store.state(session, Advertised)
            allowed = guard.allowed_nodes(_key(context))
            kept, sealed = share(state, Roster(session, terms, cards), allowed=allowed)
            store.keep(kept)
        return Message(secure_wire.pack(sealed), reply_to=message)

    def answer(self, message: Message, context: Context) -> Message:
        """The answer to the round's question, with this node's noise, under all masks."""
        store = _store(context)
        ask, mail = self._read(message), secure_wire.unpack(secure_wire.Mail, message)
        session = Session(run=context.run_id, round_number=ask.release.round)
        with store.locked():
            state = store.state(session, Shared)
            if ask.secure != state.roster.terms:
                raise ProtocolError("the question is for other terms than the roster")
            deviation = noise_steps(ask.release.mechanism, state.roster.terms)
            key, guard = _key(context), guard_of(context)
            # What the node's owner has come not to allow since it showed its keys.
            guard.check_terms(state.roster.terms, len(state.roster.cards))
            state.roster.check_allowed(guard.allowed_nodes(key))
            ready = receive(state, active=mail.active, letters=mail.letters)
            # A question that fails is not put again, nor another in its place.
            store.keep(None)
            # Nobody else knows the coins: who was drawn stays on this node.
            drawn = replace(ask, sampling_key=os.urandom(32))
            total = self._answer(drawn, message, context)[0].total
            noise = SecureRandom().rounded_normal(deviation, len(total))
            values: Vector = (total + noise).view(np.uint64)
            kept, masked, signature = mask(
                ready,
                question=secure_wire.question_digest(message.content),
                values=values,
                key=key,
            )
            store.keep(kept)
        return Message(secure_wire.pack_masked(masked, signature), reply_to=message)

    def sign_survivors(self, message: Message, context: Context) -> Message:
        """A signature on the set of nodes that answered."""
        store, session = _store(context), _session(message, context)
        shown = secure_wire.unpack(secure_wire.Answered, message)
        with store.locked():
            state = store.state(session, Masked)
            key = _key(context)
            kept, signature = agree(
                state, survivors=shown.survivors, answered=shown.answered, key=key
            )
            store.keep(kept)
        return Message(secure_wire.pack(secure_wire.Signed(signature=signature)), reply_to=message)

    def unmask(self, message: Message, context: Context) -> Message:
        """Shares that unmask the sum; what was kept of the round is gone before they leave."""
        store, session = _store(context), _session(message, context)
        signatures = secure_wire.unpack(secure_wire.Signatures, message).signatures
        with store.locked():
            state = store.state(session, Agreed)
            shares = unmask(state, signatures=signatures)
            store.keep(None)
        return Message(secure_wire.pack(shares), reply_to=message)


def noise_steps(mechanism: GaussianMechanism, terms: Terms) -> float:
    """Standard deviation of one node's noise in steps of the grid.

    Raises:
        WireError: it is too little noise to hide an answer.
    """
    deviation = mechanism.standard_deviation * terms.noise_share * STEPS
    if deviation < LEAST_STEPS:
        raise wire.WireError(
            f"the request's noise multiplier {mechanism.noise_multiplier:g} leaves each node "
            f"{deviation:.3g} steps of the grid, at least {LEAST_STEPS:g} are needed"
        )
    return deviation


def _store(context: Context) -> RoundStore:
    return RoundStore(context.run_id, context.node_id)


def _session(message: Message, context: Context) -> Session:
    with raised_as(wire.WireError, ConfigError):
        number = secure_wire.unpack(secure_wire.Asked, message).round
        return Session(run=context.run_id, round_number=number)


def own_key(context: Context, guard: NodeGuard) -> NodeKey:
    """The key of a node whose owner lists it, and lets nobody at what it keeps.

    Raises:
        NotAllowedError: the node has no key, or its owner lists none, or others than the owner
            could change what it keeps of a round.
    """
    own = _key(context)
    guard.allowed_nodes(own)
    check_state_folder()
    return own


def _key(context: Context) -> NodeKey:
    if in_simulation():
        # All nodes are one person's: there is nobody to know them by their keys.
        return NodeKey(digest("simulated", whole(context.run_id, context.node_id)))
    return read_node_key(key_file(context.node_config))

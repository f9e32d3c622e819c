"""The journal: what happened to every task drawn, in one SQLite file that survives a killed process.

Everything is an event. Rolling back to a checkpoint marks the later events as undone and keeps them, so the
*lineage* (events that are not undone) tells how the final weights came to be, and the rest tells what was
redone. The checkpoint directory's rename is the commit point: a checkpoint event is written just before it,
and counts for nothing unless that directory exists.

Commits survive a killed process; a checkpoint event and everything before it is flushed to disk and
survives a power cut as well.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.errors import InputError, PosttrainError
from posttrain.orchestration.lineage import EventKind, GroupFate, GroupHistory, LineageEvent, fates, violations

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS attempts (attempt INTEGER PRIMARY KEY, started REAL NOT NULL, process INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    attempt INTEGER NOT NULL REFERENCES attempts(attempt),
    time REAL NOT NULL,
    kind TEXT NOT NULL,
    group_id TEXT,
    task_id TEXT,
    ordinal INTEGER,
    step INTEGER,
    policy_version INTEGER,
    reason TEXT,
    data TEXT,
    undone_by INTEGER REFERENCES attempts(attempt)
);
CREATE INDEX IF NOT EXISTS events_by_group ON events(group_id, seq);
CREATE INDEX IF NOT EXISTS events_by_kind ON events(kind, step) WHERE undone_by IS NULL;
"""


class JournalError(PosttrainError, RuntimeError):
    """The journal is used against its rules: no attempt begun, a group that was not drawn, a group closed twice."""


@dataclass(frozen=True, slots=True)
class Draw:
    """A task taken from the sampler. ``ordinal`` counts draws from 0 over the lineage, without a gap."""

    group_id: str
    task_id: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where a resumed run stands.

    ``cursor`` is the sampler's state as saved, ``open_groups`` were drawn before the checkpoint and are
    neither consumed nor discarded: they must be submitted again. ``undone_groups`` were drawn after it.
    """

    step: int
    policy_version: int
    cursor: Any
    undone_events: int
    undone_groups: int
    open_groups: tuple[str, ...]


class Journal:
    """Writer and reader of one run's journal. One process at a time may write; others may read.

    A context manager. ``begin_attempt`` comes before anything is written.
    """

    def __init__(self, connection: sqlite3.Connection, lock_descriptor: int | None) -> None:
        self._connection = connection
        self._lock_descriptor = lock_descriptor
        self._attempt = 0

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Journal:
        """Open or create. Raises InputError if another process writes to it, or the file is damaged."""
        if read_only:
            if not path.is_file():
                raise InputError("run", str(path), "there is no journal here", "Name a run directory")
            connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None)
            lock = None
        else:
            lock = _lock(path)
            connection = sqlite3.connect(path, isolation_level=None)
        try:
            _prepare(connection, read_only)
        except sqlite3.DatabaseError as error:
            connection.close()
            _unlock(lock)
            raise InputError(
                "run", str(path), f"the journal is damaged ({error})", "Restore the file, or start a new run"
            ) from error
        except BaseException:
            connection.close()
            _unlock(lock)
            raise
        return cls(connection, lock)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file and let another process write."""
        self._connection.close()
        _unlock(self._lock_descriptor)
        self._lock_descriptor = None

    # --- writing -------------------------------------------------------------------------------

    def begin_attempt(self) -> int:
        """Register this process start; returns its number, 1 for the first."""
        with self._transaction():
            row = self._connection.execute("SELECT COALESCE(MAX(attempt), 0) + 1 FROM attempts").fetchone()
            self._attempt = int(row[0])
            self._connection.execute("INSERT INTO attempts VALUES (?, ?, ?)", (self._attempt, time.time(), os.getpid()))
        return self._attempt

    def drawn(self, draws: Iterable[Draw]) -> None:
        """Tasks were taken from the sampler. Raises JournalError if a group was drawn before in this lineage."""
        with self._transaction():
            for draw in draws:
                if self._kinds_of(draw.group_id):
                    raise JournalError(f"{draw.group_id} was drawn before")
                self._append(EventKind.DRAWN, draw.group_id, task_id=draw.task_id, ordinal=draw.ordinal)

    def submitted(self, group_ids: Iterable[str], policy_version: int) -> None:
        """Groups have started on the engine under this policy version."""
        self._groups(EventKind.SUBMITTED, group_ids, policy_version=policy_version)

    def finished(self, group_id: str, oldest_version: int, newest_version: int) -> None:
        """All members of a group have ended; versions are of its sampled tokens."""
        self._groups(EventKind.FINISHED, [group_id], policy_version=oldest_version, data={"newest": newest_version})

    def graded(self, group_id: str, *, gradable: int, ungradable: int, failed: int) -> None:
        """A group is graded; counts are of members."""
        data = {"gradable": gradable, "ungradable": ungradable, "failed": failed}
        self._groups(EventKind.GRADED, [group_id], data=data)

    def consumed(self, group_ids: Iterable[str], step: int) -> None:
        """Groups are trained on in this step."""
        self._groups(EventKind.CONSUMED, group_ids, step=step)

    def discarded(self, group_id: str, reason: str, step: int | None = None) -> None:
        """A group will not be trained. Raises JournalError without a reason."""
        if not reason:
            raise JournalError(f"{group_id} is discarded without a reason")
        self._groups(EventKind.DISCARDED, [group_id], step=step, reason=reason)

    def step_done(self, step: int, policy_version: int) -> None:
        """A batch was used; the trainer is now at ``policy_version``."""
        with self._transaction():
            self._append(EventKind.STEP, step=step, policy_version=policy_version)

    def checkpoint(self, step: int, policy_version: int, cursor: Any) -> None:
        """The state of ``step`` is about to be committed by the checkpoint's rename.

        ``cursor`` is the sampler's JSON-compatible state. When this returns, all events are on the disk.
        """
        self._connection.execute("PRAGMA synchronous=FULL")
        try:
            with self._transaction():
                self._append(EventKind.CHECKPOINT, step=step, policy_version=policy_version, data={"cursor": cursor})
        finally:
            self._connection.execute("PRAGMA synchronous=NORMAL")

    def rollback_to(self, step: int) -> Rollback:
        """Undo every event after the checkpoint of ``step``; step 0 without a checkpoint undoes all.

        Call it after ``begin_attempt`` of the resuming process. Raises JournalError if the lineage has no
        checkpoint of that step.
        """
        row = self._connection.execute(
            "SELECT seq, policy_version, data FROM events WHERE kind = ? AND step = ? AND undone_by IS NULL "
            "ORDER BY seq DESC LIMIT 1",
            (EventKind.CHECKPOINT, step),
        ).fetchone()
        if row is None and step != 0:
            raise JournalError(
                f"the journal knows no checkpoint of step {step} (it has {self.checkpoint_steps() or 'none'}); "
                "the checkpoint and the journal are not of the same run"
            )
        mark, version, cursor = (0, 0, None) if row is None else (row[0], row[1], json.loads(row[2])["cursor"])
        with self._transaction():
            groups = self._connection.execute(
                "SELECT COUNT(*) FROM events WHERE seq > ? AND undone_by IS NULL AND kind = ?", (mark, EventKind.DRAWN)
            ).fetchone()[0]
            undone = self._connection.execute(
                "UPDATE events SET undone_by = ? WHERE seq > ? AND undone_by IS NULL", (self._attempt, mark)
            ).rowcount
        return Rollback(step, int(version), cursor, undone, int(groups), self.open_groups())

    # --- reading -------------------------------------------------------------------------------

    @property
    def attempt(self) -> int:
        """Number of the attempt begun by this object; 0 before ``begin_attempt``."""
        return self._attempt

    def attempts(self) -> int:
        """How many processes have written to this run."""
        return int(self._connection.execute("SELECT COUNT(*) FROM attempts").fetchone()[0])

    def checkpoint_steps(self) -> list[int]:
        """Steps with a checkpoint event in the lineage, ascending. The directory decides if it is there."""
        rows = self._connection.execute(
            "SELECT DISTINCT step FROM events WHERE kind = ? AND undone_by IS NULL ORDER BY step",
            (EventKind.CHECKPOINT,),
        )
        return [int(row[0]) for row in rows]

    def last_step(self) -> int:
        """Last step done in the lineage, 0 if none."""
        row = self._connection.execute(
            "SELECT COALESCE(MAX(step), 0) FROM events WHERE kind = ? AND undone_by IS NULL", (EventKind.STEP,)
        ).fetchone()
        return int(row[0])

    def next_ordinal(self) -> int:
        """Ordinal of the next draw in the lineage."""
        row = self._connection.execute(
            "SELECT COALESCE(MAX(ordinal) + 1, 0) FROM events WHERE kind = ? AND undone_by IS NULL", (EventKind.DRAWN,)
        ).fetchone()
        return int(row[0])

    def open_groups(self) -> tuple[str, ...]:
        """Groups of the lineage neither consumed nor discarded, in order of drawing."""
        rows = self._connection.execute(
            "SELECT group_id FROM events AS e WHERE kind = ? AND undone_by IS NULL AND NOT EXISTS ("
            "SELECT 1 FROM events WHERE group_id = e.group_id AND undone_by IS NULL AND kind IN (?, ?)) ORDER BY seq",
            (EventKind.DRAWN, EventKind.CONSUMED, EventKind.DISCARDED),
        )
        return tuple(str(row[0]) for row in rows)

    def closed_groups(self) -> frozenset[str]:
        """Groups of the lineage that are consumed or discarded."""
        rows = self._connection.execute(
            "SELECT group_id FROM events WHERE undone_by IS NULL AND kind IN (?, ?)",
            (EventKind.CONSUMED, EventKind.DISCARDED),
        )
        return frozenset(str(row[0]) for row in rows)

    def history(self, group_id: str) -> list[GroupHistory]:
        """Everything that ever happened to a group, undone events included, oldest first."""
        rows = self._connection.execute(
            "SELECT kind, attempt, time, step, policy_version, reason, undone_by FROM events "
            "WHERE group_id = ? ORDER BY seq",
            (group_id,),
        )
        return [GroupHistory(EventKind(r[0]), r[1], r[2], r[3], r[4], r[5] or "", r[6]) for r in rows]

    def lineage(self) -> list[GroupFate]:
        """What became of every group in the lineage of the current weights, in order of drawing."""
        return fates(self._lineage_events())

    def verify_lineage(self, *, final: bool = True) -> list[str]:
        """Violations of the rule that every group is consumed exactly once or discarded with a reason.

        Also: draws without gap or repeat, steps 1, 2, 3... once each, policy version never back. Empty if
        all is well. ``final`` false allows groups that are still open.
        """
        return violations(self._lineage_events(), final=final)

    # --- inside --------------------------------------------------------------------------------

    def _lineage_events(self) -> Iterator[LineageEvent]:
        rows = self._connection.execute(
            "SELECT kind, group_id, ordinal, step, policy_version, reason, attempt FROM events "
            "WHERE undone_by IS NULL ORDER BY seq"
        )
        for kind, group_id, ordinal, step, version, reason, attempt in rows:
            yield LineageEvent(EventKind(kind), group_id or "", ordinal, step, version, reason or "", attempt)

    @contextmanager
    def _transaction(self) -> Generator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _kinds_of(self, group_id: str) -> set[str]:
        rows = self._connection.execute("SELECT kind FROM events WHERE group_id = ? AND undone_by IS NULL", (group_id,))
        return {str(row[0]) for row in rows}

    def _groups(
        self,
        kind: EventKind,
        group_ids: Iterable[str],
        *,
        step: int | None = None,
        policy_version: int | None = None,
        reason: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        with self._transaction():
            for group_id in group_ids:
                self._expect_open(group_id, kind)
                self._append(kind, group_id, step=step, policy_version=policy_version, reason=reason, data=data)

    def _expect_open(self, group_id: str, kind: EventKind) -> None:
        kinds = self._kinds_of(group_id)
        if EventKind.DRAWN not in kinds:
            raise JournalError(f"{group_id} cannot be {kind}: it was not drawn")
        closing = kinds & {EventKind.CONSUMED, EventKind.DISCARDED}
        if closing:
            raise JournalError(f"{group_id} cannot be {kind}: it is {'/'.join(sorted(closing))} already")

    def _append(
        self,
        kind: EventKind,
        group_id: str | None = None,
        *,
        task_id: str | None = None,
        ordinal: int | None = None,
        step: int | None = None,
        policy_version: int | None = None,
        reason: str | None = None,
        data: dict[str, Any] | None = None,
    ) -> None:
        if not self._attempt:
            raise JournalError("begin_attempt comes before anything is written")
        payload = None if data is None else json.dumps(data, allow_nan=False)
        self._connection.execute(
            "INSERT INTO events (attempt, time, kind, group_id, task_id, ordinal, step, policy_version, reason, data) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (self._attempt, time.time(), kind, group_id, task_id, ordinal, step, policy_version, reason, payload),
        )


def _prepare(connection: sqlite3.Connection, read_only: bool) -> None:
    connection.execute("PRAGMA busy_timeout=10000")
    problems: Sequence[tuple[str]] = connection.execute("PRAGMA quick_check(1)").fetchall()
    if problems != [("ok",)]:
        raise sqlite3.DatabaseError(problems[0][0])
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, SCHEMA_VERSION):
        raise InputError(
            "run",
            version,
            f"the journal has another schema version, {SCHEMA_VERSION} is known",
            "Use the version of posttrain that wrote the run",
        )
    if not read_only:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.executescript(_SCHEMA)
        connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _lock(path: Path) -> int:
    """Take the writer's lock; the system gives it back when the process ends, however it ends."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(
            "run", str(path.parent), "another process is writing to this run", "Wait for it to end, or stop it"
        ) from None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)

"""The journal: a killed run rolls back to its checkpoint, and the lineage stays provable."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.errors import InputError
from posttrain.orchestration.journal import Draw, Journal, JournalError
from posttrain.orchestration.lineage import EventKind, LineageEvent, violations


def _step(journal: Journal, step: int, first: int, *, discard: bool = False) -> None:
    """Draw two groups, and train on them (or discard the second) in this step."""
    names = [f"t{first}/0/0", f"t{first + 1}/0/0"]
    journal.drawn(Draw(n, n.split("/")[0], first + i) for i, n in enumerate(names))
    journal.submitted(names, step - 1)
    for name in names:
        journal.finished(name, step - 1, step - 1)
        journal.graded(name, gradable=4, ungradable=0, failed=0)
    if discard:
        journal.discarded(names[1], "all members have the same reward", step)
    journal.consumed(names[:1] if discard else names, step)
    journal.step_done(step, step)


def test_a_clean_run_has_a_clean_lineage(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        assert journal.begin_attempt() == 1
        _step(journal, 1, 0)
        _step(journal, 2, 2, discard=True)
        assert journal.verify_lineage() == []
        fates = {f.group_id: f for f in journal.lineage()}
        assert fates["t0/0/0"].consumed_step == 1
        assert fates["t3/0/0"].consumed_step is None
        assert fates["t3/0/0"].discard_reason == "all members have the same reward"
        assert journal.last_step() == 2
        assert journal.next_ordinal() == 4


def test_rollback_undoes_the_work_after_the_checkpoint_and_keeps_its_history(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.open(path) as journal:
        journal.begin_attempt()
        _step(journal, 1, 0)
        journal.checkpoint(1, 1, {"position": 2})
        _step(journal, 2, 2)
        journal.drawn([Draw("t4/0/0", "t4", 4)])
    with Journal.open(path) as journal:
        assert journal.begin_attempt() == 2
        back = journal.rollback_to(1)
        assert (back.step, back.policy_version, back.cursor) == (1, 1, {"position": 2})
        assert back.undone_groups == 3
        assert back.open_groups == ()
        assert journal.last_step() == 1
        assert journal.next_ordinal() == 2
        _step(journal, 2, 2)
        assert journal.verify_lineage() == []
        assert {f.group_id: f.attempt for f in journal.lineage()} == {
            "t0/0/0": 1,
            "t1/0/0": 1,
            "t2/0/0": 2,
            "t3/0/0": 2,
        }
        history = journal.history("t2/0/0")
        assert [h.undone_by for h in history] == [2] * 5 + [None] * 5
        assert [h.attempt for h in history] == [1] * 5 + [2] * 5


def test_a_group_open_at_the_checkpoint_is_open_again(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal.begin_attempt()
        journal.drawn([Draw("late/0/0", "late", 0)])
        journal.checkpoint(0, 0, None)
        journal.submitted(["late/0/0"], 0)
        journal.consumed(["late/0/0"], 1)
        assert journal.open_groups() == ()
        assert journal.rollback_to(0).open_groups == ("late/0/0",)
        assert journal.verify_lineage(final=False) == []
        assert journal.verify_lineage() == ["late/0/0 was drawn and neither consumed nor discarded"]
        assert journal.closed_groups() == frozenset()


def test_rollback_to_nothing_and_to_an_unknown_step(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal.begin_attempt()
        _step(journal, 1, 0)
        with pytest.raises(JournalError, match="no checkpoint of step 1 "):
            journal.rollback_to(1)
        assert journal.verify_lineage() == [], "a refused rollback changes nothing"
        back = journal.rollback_to(0)
        assert (back.policy_version, back.cursor, back.undone_groups) == (0, None, 2)
        assert journal.lineage() == []


def test_a_checkpoint_that_was_announced_but_never_committed_is_undone(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        journal.begin_attempt()
        _step(journal, 1, 0)
        journal.checkpoint(1, 1, 2)
        _step(journal, 2, 2)
        journal.checkpoint(2, 2, 4)
        assert journal.rollback_to(1).cursor == 2
        assert journal.checkpoint_steps() == [1]
        _step(journal, 2, 2)
        journal.checkpoint(2, 2, 4)
        assert journal.rollback_to(2).cursor == 4


@pytest.mark.parametrize("kill_after", [1, 3, 9, 10, 12, 25])
def test_a_process_killed_anywhere_resumes_to_the_lineage_of_an_uninterrupted_run(
    tmp_path: Path, kill_after: int
) -> None:
    """A real process is killed with SIGKILL after so many calls; the resumed one does the rest.

    Calls 9 and 10 are the two sides of a checkpoint's commit: announced in the journal, and renamed.
    """
    program = """
import sys, time
from pathlib import Path
from posttrain.orchestration.journal import Draw, Journal
from posttrain.rundir.checkpoints import latest_good, write_checkpoint
path, stop_after = Path(sys.argv[1]), int(sys.argv[2])
checkpoints = path.parent / "checkpoints"
calls = 0
def tick():
    global calls
    calls += 1
    if calls == stop_after:
        print("stalled", flush=True)
        time.sleep(60)
with Journal.open(path) as journal:
    attempt = journal.begin_attempt()
    good = latest_good(checkpoints)
    back = journal.rollback_to(good.manifest.step if good.manifest else 0)
    position = back.cursor or 0
    for step in range(back.step + 1, 6):
        names = [f"t{position + i}/0/0" for i in range(2)]
        journal.drawn(Draw(n, n[:2], position + i) for i, n in enumerate(names)); tick()
        journal.submitted(names, step - 1); tick()
        journal.consumed(names, step); tick()
        journal.step_done(step, step); tick()
        position += 2
        if step % 2 == 0:
            journal.checkpoint(step, step, position); tick()
            write_checkpoint(checkpoints, step, lambda d: (d / "state").write_text(str(step))); tick()
print("done", flush=True)
"""
    path = tmp_path / "journal.sqlite"
    process = subprocess.Popen([sys.executable, "-c", program, str(path), str(kill_after)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    if line == b"stalled\n":
        process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    killed = line == b"stalled\n"
    subprocess.run([sys.executable, "-c", program, str(path), "0"], check=True, capture_output=True)
    with Journal.open(path, read_only=True) as journal:
        assert journal.attempts() == 2
        assert journal.verify_lineage() == []
        assert {f.group_id: f.consumed_step for f in journal.lineage()} == {f"t{i}/0/0": i // 2 + 1 for i in range(10)}
    assert killed == (kill_after <= 24)


def test_misuse_is_refused_and_leaves_no_trace(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j") as journal:
        with pytest.raises(JournalError, match="begin_attempt"):
            journal.drawn([Draw("a", "a", 0)])
        journal.begin_attempt()
        journal.drawn([Draw("a", "a", 0), Draw("b", "b", 1)])
        with pytest.raises(JournalError, match="drawn before"):
            journal.drawn([Draw("c", "c", 2), Draw("a", "a", 3)])
        assert journal.open_groups() == ("a", "b"), "a call is recorded as a whole or not at all"
        with pytest.raises(JournalError, match="without a reason"):
            journal.discarded("a", "")
        with pytest.raises(JournalError, match="not drawn"):
            journal.consumed(["a", "x"], 1)
        assert journal.open_groups() == ("a", "b")
        journal.consumed(["a"], 1)
        with pytest.raises(JournalError, match="consumed already"):
            journal.consumed(["a"], 2)
        with pytest.raises(JournalError, match="consumed already"):
            journal.discarded("a", "late")


def test_two_writers_are_refused_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.open(path) as journal:
        journal.begin_attempt()
        _step(journal, 1, 0)
        with pytest.raises(InputError, match="another process is writing"):
            Journal.open(path)
        with Journal.open(path, read_only=True) as reader:
            assert reader.last_step() == 1
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader.begin_attempt()
    Journal.open(path).close()


def test_a_missing_or_damaged_journal_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no journal"):
        Journal.open(tmp_path / "none", read_only=True)
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(InputError, match="damaged"):
        Journal.open(path)
    path.unlink()
    Journal.open(path).close()  # the lock was given back
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(InputError, match="schema version"):
        Journal.open(path)


def _event(kind: EventKind, group: str = "", **fields: object) -> LineageEvent:
    values: dict[str, object] = {"ordinal": None, "step": None, "policy_version": None, "reason": "", "attempt": 1}
    return LineageEvent(kind, group, **{**values, **fields})  # type: ignore[arg-type]


def test_the_checker_finds_every_kind_of_violation() -> None:
    events = [
        _event(EventKind.DRAWN, "twice", ordinal=0),
        _event(EventKind.CONSUMED, "twice", step=1),
        _event(EventKind.CONSUMED, "twice", step=2),
        _event(EventKind.DRAWN, "both", ordinal=1),
        _event(EventKind.CONSUMED, "both", step=1),
        _event(EventKind.DISCARDED, "both", reason="late"),
        _event(EventKind.DRAWN, "silent", ordinal=2),
        _event(EventKind.DISCARDED, "silent"),
        _event(EventKind.DRAWN, "open", ordinal=5),
        _event(EventKind.CONSUMED, "never drawn", step=2),
        _event(EventKind.STEP, step=1, policy_version=3),
        _event(EventKind.STEP, step=3, policy_version=2),
    ]
    text = "\n".join(violations(events, final=True))
    for expected in (
        "twice was consumed 2 times",
        "both was consumed in step 1 and discarded (late)",
        "silent was discarded without a reason",
        "open was drawn and neither",
        "never drawn was drawn 0 times",
        "1 draws are missing or repeated, the first is draw 3",
        "steps do not run 1, 2, 3",
        "goes back from 3 to 2",
        "steps that were not finished: [2]",
    ):
        assert expected in text
    assert len(text.splitlines()) == 9


def test_prompts_skipped_by_a_resume_are_found(tmp_path: Path) -> None:
    """Trained 1 to 40 and then 57 to 80: the draws between are missing."""
    with Journal.open(tmp_path / "j") as journal:
        journal.begin_attempt()
        for ordinal in [*range(40), *range(56, 80)]:
            journal.drawn([Draw(f"t{ordinal}", f"t{ordinal}", ordinal)])
            journal.consumed([f"t{ordinal}"], 1)
        journal.step_done(1, 1)
        assert journal.verify_lineage() == ["16 draws are missing or repeated, the first is draw 40"]


def test_checkpoint_cursor_survives_as_json(tmp_path: Path) -> None:
    cursor = {"environments": {"a": {"epoch": 1, "position": 7}}, "order": [3, 1, 2], "text": "é\n"}
    with Journal.open(tmp_path / "j") as journal:
        journal.begin_attempt()
        journal.checkpoint(0, 0, cursor)
        assert journal.rollback_to(0).cursor == json.loads(json.dumps(cursor))

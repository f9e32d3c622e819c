"""Layer 6: the staleness state machine. No torch, no I/O, no clock."""

from posttrain.schedule.machine import Schedule
from posttrain.schedule.state import Counts, Discarded, LiveGroup, ScheduleError, SchedulePlan, Snapshot, Stage

__all__ = ["Counts", "Discarded", "LiveGroup", "Schedule", "ScheduleError", "SchedulePlan", "Snapshot", "Stage"]

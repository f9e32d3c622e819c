"""Layer 6: the staleness state machine. No torch, no I/O, no clock."""

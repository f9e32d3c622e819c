"""The run directory: writers, readers, trackers behind one interface. No torch."""

"""Detectors, doctor, explain, report. No torch."""

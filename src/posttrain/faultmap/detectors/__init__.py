"""Every detector, one module each."""

from __future__ import annotations

from posttrain.faultmap.detector import Detector

DETECTORS: tuple[Detector, ...] = ()

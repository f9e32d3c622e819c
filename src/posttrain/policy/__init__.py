"""Layer 2: advantages, ratios, trust regions, anchors, aggregation, objective; trainer."""

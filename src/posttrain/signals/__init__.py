"""Every measured quantity: name, layer, unit, reduction, healthy range with source. No torch."""

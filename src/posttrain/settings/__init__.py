"""The configuration tree as typed data, validated before anything starts; algorithm rows as data. No torch."""

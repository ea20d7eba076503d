"""HTTP: parse, call a stage, shape the answer."""

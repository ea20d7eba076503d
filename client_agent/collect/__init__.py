"""How what an attempt left becomes a result: a ZIP that is safe to open anywhere."""

"""Packs the files of an attempt into its result: a ZIP that is safe to open anywhere."""

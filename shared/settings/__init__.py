"""Settings of both programs: base classes, loading, limits."""

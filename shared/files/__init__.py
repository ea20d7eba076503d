"""Files as both processes handle them: names, sealed bundles, archives, durable writes."""

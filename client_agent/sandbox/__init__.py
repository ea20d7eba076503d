"""The sandboxes in which untrusted bundles run."""

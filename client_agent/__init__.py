"""The agent: takes bundles, runs them in a sandbox, keeps results until they are fetched."""

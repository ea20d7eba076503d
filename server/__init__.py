"""The server: takes uploads, queues them, pushes them to agents, keeps and serves results."""

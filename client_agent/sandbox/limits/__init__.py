"""Limits: what an attempt uses, counted by the kernel or sampled by the agent."""

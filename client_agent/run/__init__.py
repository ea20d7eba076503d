"""Running payloads: the workers, the slots, and the steps of one attempt."""

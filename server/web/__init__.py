"""Pages for people, made of the documents that the API shows."""

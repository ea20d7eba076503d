"""What the handlers of the API and of the pages share: the context, parameters, a job's files."""

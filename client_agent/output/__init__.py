"""What run.sh says while it runs: its commands on stdout, live values, silence, followed logs."""

"""What an attempt may use: counted by the kernel where it can, else looked up."""

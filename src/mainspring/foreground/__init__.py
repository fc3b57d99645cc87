"""A worker as the whole purpose of a process: what it says, how others see how it is, and until when it runs."""

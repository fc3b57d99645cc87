"""What a worker does with a job, from the look for it to its settlement."""

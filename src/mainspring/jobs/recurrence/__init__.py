"""What recurs: rules by which it does, schedules that are kept, and the thread that fires them."""

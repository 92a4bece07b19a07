"""What a job is: values and decisions. No I/O, no await, no clock, no logging."""

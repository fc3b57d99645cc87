"""Jobs on NATS JetStream, for many machines."""

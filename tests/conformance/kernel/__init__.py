"""The other side: the kernel and the reference model, asked in RocketMQ's terms."""

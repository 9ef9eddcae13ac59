"""Any bytes for what reads bytes: the record decoder, handles, stored values, settings, and the kernel."""

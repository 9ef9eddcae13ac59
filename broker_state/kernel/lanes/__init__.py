"""The two kinds of lane: how leases are granted, judged and ended in each."""

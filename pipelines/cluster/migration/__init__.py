"""Moves a state between the folder of an embedded job and the checkpoint of a job on a cluster."""

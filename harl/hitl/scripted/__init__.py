"""Scripted people: clients that come in by the same links as everybody else."""

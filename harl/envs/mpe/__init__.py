"""Batched Multi-Agent Particle Environments: N copies of a task stepped in one array program."""

from harl.envs.mpe.vector_env import MPEVectorEnv

__all__ = ["MPEVectorEnv"]

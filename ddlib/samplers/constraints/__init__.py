"""Constraints on the sequences that samplers draw."""

from ddlib.samplers.constraints.automaton import Automaton

__all__ = ["Automaton"]

"""Data by agent."""

from fedpd.data.synthetic import program_strongly_noniid, strongly_noniid, weakly_noniid

__all__ = ["program_strongly_noniid", "strongly_noniid", "weakly_noniid"]

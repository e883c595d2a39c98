"""Every method against answers that are known: closed forms, quadrature, and a long run of HMC."""

from dubito.selfcheck.checks import Row, check, run

__all__ = ["Row", "check", "run"]

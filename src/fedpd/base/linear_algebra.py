"""Eigenvalues, for the problems and the theory."""

import numpy as np


def gram_eigenvalue(rows: np.ndarray) -> float:
    """Return the largest eigenvalue of A^T A, which is ||A||^2.

    It uses the smaller of the two Gram matrices A^T A and A A^T.

    Args:
        rows: A, (n, D).
    """
    return float(np.linalg.eigvalsh(rows.T @ rows if len(rows) >= rows.shape[1] else rows @ rows.T)[-1])

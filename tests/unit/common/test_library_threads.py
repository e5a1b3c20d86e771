"""No library starts more threads than there are processors for us."""

from __future__ import annotations

from services.common.library_threads import bound_library_threads


def test_what_is_not_set_is_bounded() -> None:
    """As many as processors where libraries compute for us, one where they do not; what an operator says stands."""
    environment = {"OMP_NUM_THREADS": "3"}
    bound_library_threads(environment, 2)
    assert environment == {
        "OMP_NUM_THREADS": "3",
        "RAYON_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }

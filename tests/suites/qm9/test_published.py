import pytest

from equipoise import delta_m
from equipoise.suites.qm9.suite import QM9


@pytest.mark.parametrize("method", QM9.published)
def test_a_published_row_gives_its_printed_delta_m(method):
    row = dict(QM9.published[method])
    printed = row.pop("delta_m")
    found = delta_m(row, dict(QM9.stl), higher_is_better=False)
    if method == "ldc":  # the paper's own row does not follow from its printed errors
        assert found == pytest.approx(45.8, abs=0.2)
    else:
        assert found == pytest.approx(printed, abs=0.6)  # FAMO and GO4Align print two digits
